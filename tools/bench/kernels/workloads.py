"""What is measured: shapes, lengths, and against whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

FACETER, IN_ORDER = "faceter", "tiles in order"
EAGER, COMPILED, FLEX = "eager padded", "compile padded", "FlexAttention"
VARLEN, SDPA_MASK, SDPA_CUDNN = "varlen (FA2)", "SDPA mask padded", "SDPA cuDNN padded"

LOG_NORMAL, GIANT = "log-normal", "giant"
# Rows of the longest of the tiny examples beside a giant.
TINY = 32


@dataclass(frozen=True)
class Workload:
    """One problem and the peers that compute it.

    Attributes:
        family: workloads that share a table and a picture.
        batch, heads, dim: B, H, D.
        max_q, max_kv: bounds of the lengths, which a dense or shared side has exactly.
        lengths: of the jagged side; see `draw_lengths`.
        op: gdpa, jagged_attention or block_attention.
        q: jagged, or shared by the batch.
        kv: dense, jagged, or "same": jagged with the queries' offsets.
        block: rows of a block of block_attention.
        peers: beside faceter.
        quick: those of them that --quick runs too, None = it leaves the workload out.
    """

    family: str
    batch: int
    heads: int
    dim: int
    max_q: int
    max_kv: int
    lengths: float | str
    op: str = "gdpa"
    q: str = "jagged"
    kv: str = "dense"
    block: int = 0
    peers: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        kv = "" if self.kv == "same" else f" KV{self.max_kv}"
        lengths = self.lengths if isinstance(self.lengths, str) else f"s={self.lengths}"
        return f"{self.family}/B{self.batch} H{self.heads} D{self.dim} Q{self.max_q}{kv} {lengths}"

    def tiny(self) -> Workload:
        """As small as a CPU likes it, and of the same forms."""
        return replace(
            self, batch=5, heads=2, dim=16, max_q=min(self.max_q, 40), max_kv=min(self.max_kv, 40 if self.kv == "same"
            else 24), block=min(self.block, 16),
        )  # fmt: skip


def draw_lengths(kind: float | str, batch: int, most: int, generator: torch.Generator) -> Tensor:
    """(B,) int64 lengths.

    Args:
        kind: sparsity s, about the mean over the largest: uniform in [(2s - 1) most, most] for s >= 0.5, in
            [1, 2 s most] below; "log-normal": sigma 1, mean a third of `most`, clipped to [1, most]; "giant": one of
            `most` rows among tiny ones.
    """
    if kind == LOG_NORMAL:
        normal = torch.randn(batch, generator=generator)
        return (normal + math.log(most / 3) - 0.5).exp().round().long().clamp(1, most)
    if kind == GIANT:
        lengths = torch.randint(1, min(TINY, most) + 1, (batch,), generator=generator)
        lengths[batch // 2] = most
        return lengths
    low, high = (round((2 * kind - 1) * most), most) if kind >= 0.5 else (1, max(1, round(2 * kind * most)))
    return torch.randint(low, high + 1, (batch,), generator=generator)


def _gdpa() -> list[Workload]:
    def case(family, batch, heads, dim, max_q, max_kv, lengths, quick=None):
        peers = (EAGER, COMPILED, FLEX) if lengths == 0.5 else (EAGER, COMPILED)
        return Workload(family, batch, heads, dim, max_q, max_kv, lengths, peers=peers, quick=quick)

    padded = (EAGER, COMPILED)
    return [
        case("gdpa-cross", 1152, 4, 128, 1000, 256, 0.5, quick=(*padded, FLEX)),
        case("gdpa-cross", 1152, 4, 128, 2048, 256, 0.5, quick=padded),
        case("gdpa-small", 2048, 4, 64, 800, 256, 0.5, quick=padded),
        case("gdpa-pffn", 1024, 3, 128, 1000, 192, 0.5, quick=padded),
        *(case("gdpa-self", 1152, 4, 128, n, n, 0.5, quick=padded) for n in (256, 512, 1024, 2048)),
        case("gdpa-self", 1152, 4, 128, 2048, 2048, 1.0, quick=(EAGER,)),
        case("gdpa-cross", 1152, 4, 128, 2048, 256, LOG_NORMAL, quick=(EAGER,)),
        case("gdpa-self", 1152, 4, 128, 2048, 2048, LOG_NORMAL, quick=(EAGER,)),
        *(case("gdpa-self", 1152, 4, 128, n, n, 1.0) for n in (256, 512, 1024)),
        *(case("gdpa-cross", 1152, 4, 128, n, 256, 1.0) for n in (1000, 2048)),
        case("gdpa-cross", 1152, 4, 128, 2048, 256, GIANT),
    ]


_FLEX_AT = (128, 1024, 0.5)  # it takes long to compile


def _jagged_self() -> list[Workload]:
    def case(dim, n, lengths):
        even = lengths == 1.0  # then no peer needs a mask
        fused = (VARLEN, SDPA_CUDNN if even else SDPA_MASK)
        quick = (*fused, *((COMPILED,) if lengths == 0.5 else ()), *((FLEX,) if (dim, n, lengths) == _FLEX_AT else ()))
        return Workload(
            "jagged-self", 768, 4, dim, n, n, lengths, op="jagged_attention", kv="same",
            peers=(*fused, EAGER, COMPILED, *((FLEX,) if lengths == 0.5 else ())),
            quick=None if lengths == GIANT else quick,
        )  # fmt: skip

    rows = (512, 1024, 2048, 4096)
    return [case(dim, n, s) for dim in (128, 64) for s in (0.5, 1.0) for n in rows] + [
        case(128, 2048, kind) for kind in (LOG_NORMAL, GIANT)
    ]


def _pooling() -> list[Workload]:
    """PMA and HSP: few queries that the batch shares, long keys."""
    return [
        Workload(
            "pooling", 768, 4, 128, seeds, 2048, s, op="jagged_attention", q="shared", kv="jagged",
            peers=(VARLEN, SDPA_MASK, EAGER, COMPILED, *((FLEX,) if s == 0.5 else ())),
            quick=(VARLEN, SDPA_MASK) if (seeds, s) in ((32, 0.5), (256, 0.5), (256, 0.1)) else None,
        )
        for s in (0.5, 0.1, LOG_NORMAL)
        for seeds in (32, 128, 256)
    ]  # fmt: skip


def _block() -> list[Workload]:
    return [
        Workload(
            "block", 1152, 4, 128, 2000, 2000, lengths, op="block_attention", kv="same", block=64,
            peers=(VARLEN, SDPA_MASK, EAGER, COMPILED, FLEX),
            quick=(VARLEN, EAGER, COMPILED) if lengths == 0.7 else None,
        )
        for lengths in (0.7, LOG_NORMAL)
    ]  # fmt: skip


def _schedule() -> list[Workload]:
    """Tiles with the longest loops first against tiles in the order of the examples."""
    return [
        Workload(
            f"schedule-{op.partition('_')[0]}", batch, 4, 128, 2048, 2048, lengths, op=op, kv="same", peers=(IN_ORDER,),
            quick=(IN_ORDER,) if lengths == LOG_NORMAL else None,
        )
        for lengths in (LOG_NORMAL, GIANT)
        for op in ("gdpa", "jagged_attention")
        for batch in (1152, 128)
    ]  # fmt: skip


def workloads() -> list[Workload]:
    """All, those that matter most first."""
    return [*_gdpa(), *_jagged_self(), *_block(), *_schedule(), *_pooling()]
