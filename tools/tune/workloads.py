"""What configs are measured on: each operator's forms, head dims, variants and length buckets that models have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from faceter.kernels.block_attention.op import block_attention
from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.jagged_attention.op import jagged_attention

# Rows of queries and of keys in all, about: a launch of a millisecond or so.
_ROWS = 1 << 18
_HEADS = 4
# Bounds of query and key lengths, at least one in each bucket pair: long self, cross, short self, pooling by seeds.
_LENGTHS = ((1024, 1024), (1024, 256), (256, 256), (32, 1024), (256, 1024))


def workloads(device: torch.device) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, a call that runs an operator forward and backward)."""
    for dim in (64, 128, 256):
        for max_q, max_kv in _LENGTHS:
            for op in (gdpa, jagged_attention):
                name = f"{op.__name__} D={dim} Q={max_q} K/V={max_kv}"
                yield name, lambda op=op, n=max_q, m=max_kv, d=dim: _attend(op, n, m, d, device)
    for dim in (64, 128):
        for op in (gdpa, jagged_attention):
            name = f"{op.__name__} D={dim} window"
            yield name, lambda op=op, d=dim: _attend(op, 1024, 1024, d, device, window=(100, 100))
        yield (
            f"jagged_attention D={dim} bias",
            lambda d=dim: _attend(jagged_attention, 512, 512, d, device, biased=True),
        )
        for rotary in (False, True):
            name = f"block_attention D={dim}{' rotary' * rotary}"
            yield name, lambda d=dim, r=rotary: _attend_in_blocks(d, r, device)


def _lengths(most: int, batch: int, device: torch.device) -> Tensor:
    """(B + 1,) offsets of lengths that are uniform from half of the bound on."""
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.randint(most // 2, most + 1, (batch,), generator=generator)
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)


def _leaf(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device).requires_grad_()


def _attend(op, max_q: int, max_kv: int, dim: int, device, window=(None, None), biased: bool = False) -> None:
    batch = max(1, _ROWS // max(max_q, max_kv))
    kv_offsets = _lengths(max_kv, batch, device)
    q_offsets = kv_offsets if max_q == max_kv else _lengths(max_q, batch, device)
    q = _leaf(int(q_offsets[-1]), _HEADS, dim, device=device)
    k, v = (_leaf(int(kv_offsets[-1]), _HEADS, dim, device=device) for _ in range(2))
    options = {"q_offsets": q_offsets, "kv_offsets": kv_offsets, "max_q": max_q, "max_kv": max_kv, "window": window}
    leaves = [q, k, v]
    if biased:
        leaves.append(_leaf(1, _HEADS, max_q, max_kv, device=device))
        options["bias"] = leaves[-1]
    o = op(q, k, v, **options, qk_scale=dim**-0.5)
    torch.autograd.grad(o, leaves, torch.randn_like(o))


def _attend_in_blocks(dim: int, rotary: bool, device) -> None:
    offsets = _lengths(1024, _ROWS // 1024, device)
    q, k, v = (_leaf(int(offsets[-1]), _HEADS, dim, device=device) for _ in range(3))
    angles = torch.rand(len(q), dim // 2, device=device)
    turn = {"cos": angles.cos(), "sin": angles.sin()} if rotary else {}
    o = block_attention(q, k, v, offsets=offsets, max_len=1024, **turn)
    torch.autograd.grad(o, (q, k, v), torch.randn_like(o))
