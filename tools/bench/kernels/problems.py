"""A workload with lengths and tensors drawn."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from faceter.tools.bench.kernels.workloads import Workload, draw_lengths

ACTIVATION = "gelu"
# Copies of the inputs are taken in turn, so many that together they are this many times the L2.
_L2_TIMES, _MOST_COPIES = 4, 16


@dataclass(frozen=True)
class Rows:
    """The rows of queries, or of keys and values.

    Attributes:
        form: jagged (T, H, D), dense (B, N, H, D) or shared (N, H, D).
        lengths: (B,) int64, on the CPU.
        most: a bound of them.
        offsets: (B + 1,) int32 on the device, of a jagged side.
    """

    form: str
    lengths: Tensor
    most: int
    offsets: Tensor | None

    @classmethod
    def of(cls, form: str, lengths: Tensor, most: int, device: torch.device) -> Rows:
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int().to(device) if form == "jagged" else None
        return cls(form, lengths, most, offsets)

    def first(self, x: Tensor, batch: int) -> Tensor:
        """x of the first `batch` examples."""
        return {"jagged": x[: int(self.lengths[:batch].sum())], "dense": x[:batch], "shared": x}[self.form]

    def example(self, x: Tensor, b: int) -> Tensor:
        """(N, H, D) rows of example b."""
        begin = int(self.lengths[:b].sum())
        if self.form == "jagged":
            return x[begin : begin + int(self.lengths[b])]
        return x[b] if self.form == "dense" else x


@dataclass(frozen=True)
class Problem:
    """Attributes:
    workload: what it was drawn from.
    q, kv: where rows lie.
    copies: (q, k, v, gradient of the output) each; the first three require gradients.
    """

    workload: Workload
    q: Rows
    kv: Rows
    copies: list[tuple[Tensor, Tensor, Tensor, Tensor]]

    @property
    def batch(self) -> int:
        return len(self.q.lengths)

    @property
    def o(self) -> Rows:
        """Where rows of the output lie: no example shares them."""
        return replace(self.q, form="dense") if self.q.form == "shared" else self.q

    @property
    def scales(self) -> tuple[float, float]:
        """(qk_scale, out_scale): scores of normal inputs are normal; of GDPA's sum over keys, a mean."""
        return self.workload.dim**-0.5, 1 / self.workload.max_kv if self.workload.op == "gdpa" else 1.0

    @property
    def device(self) -> torch.device:
        return self.copies[0][0].device

    @property
    def documents(self) -> Problem:
        """Itself, or with each block as an example: block attention is attention within these."""
        if not self.workload.block:
            return self
        block, blocks = self.workload.block, []
        for n in self.q.lengths.tolist():
            blocks += [block] * (n // block) + [n % block] * (n % block > 0)
        rows = Rows.of("jagged", torch.tensor(blocks), block, self.device)
        return replace(self, q=rows, kv=rows)

    def flops(self, batch: int | None = None) -> int:
        """Of the forward pass, on actual lengths; backward is 2.5 times that. Of the first `batch` documents."""
        documents, w = self.documents, self.workload
        return 4 * w.heads * w.dim * int((documents.q.lengths * documents.kv.lengths)[:batch].sum())

    def bytes(self, direction: str) -> int:
        """That must move at least: each input read once, each result written once."""
        q, k, v, o = (x.numel() * x.element_size() for x in self.copies[0])
        forward, backward = q + k + v + o, o + 2 * (q + k + v)
        return {"forward": forward, "backward": backward, "both": forward + backward}[direction]


def draw(workload: Workload, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Problem:
    """The same for the same workload."""
    w, seed = workload, zlib.crc32(workload.name.encode())
    host, generator = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed)
    lengths = draw_lengths(w.lengths, w.batch, w.max_q if w.q == "jagged" else w.max_kv, host)

    def side(form: str, most: int) -> Rows:
        if form in ("jagged", "same"):
            return Rows.of("jagged", lengths, most, device)
        return Rows.of(form, torch.full((w.batch,), most), most, device)

    q, kv = side(w.q, w.max_q), side(w.kv, w.max_kv)
    if w.kv == "same":
        kv = q  # one offsets tensor: tile lists are kept by it
    o = replace(q, form="dense") if q.form == "shared" else q

    def tensor(rows: Rows) -> Tensor:
        many = {"jagged": (int(rows.lengths.sum()),), "dense": (w.batch, rows.most), "shared": (rows.most,)}[rows.form]
        return torch.randn((*many, w.heads, w.dim), device=device, dtype=dtype, generator=generator)

    def copy():
        return (*(tensor(rows).requires_grad_() for rows in (q, kv, kv)), tensor(o))

    copies = [copy()]
    if device.type == "cuda":
        size = sum(x.numel() * x.element_size() for x in copies[0])
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        count = min(_MOST_COPIES, -(-_L2_TIMES * l2 // size))
    else:
        count = 2
    return Problem(w, q, kv, copies + [copy() for _ in range(count - 1)])
