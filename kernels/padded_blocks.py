"""Blocks of examples of like length, padded: how CPU implementations turn a jagged problem into a few large ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from faceter.kernels.operands import Side

# Scores of one block: small enough for the caches of a core, large enough for matmul to dominate.
_SCORES = 1 << 20


def lengths_of(side: Side, batch: int, device: torch.device) -> Tensor:
    """(B,) int64."""
    if side.offsets is not None:
        return side.offsets.diff().long()
    return torch.full((batch,), side.rows, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class Rows:
    """Where the rows of b examples lie, padded to n.

    Attributes:
        examples: (b,) int64.
        index: (b, n) int64 rows of a jagged tensor; of a padding row any legal one.
        valid: (b, n) bool.
    """

    examples: Tensor
    index: Tensor
    valid: Tensor

    def gather(self, x: Tensor, side: Side) -> Tensor:
        """(b, H, n, D) of x in any form; padding rows are zero."""
        n = self.valid.shape[1]
        if side.shared:
            rows = x[:n].expand(len(self.examples), -1, -1, -1)
        elif side.offsets is None:
            rows = x[self.examples, :n]
        else:
            # Not times the mask: what lies in a row of no one may be NaN.
            rows = torch.where(self.valid[..., None, None], x[self.index], 0)
        return rows.transpose(1, 2)

    def scatter(self, x_bHnD: Tensor, out: Tensor, side: Side) -> None:
        """Writes rows to where `gather` took them from; adds up over examples in a shared `out`."""
        rows = x_bHnD.transpose(1, 2)
        n = self.valid.shape[1]
        if side.shared:
            out[:n] += rows.sum(0, dtype=out.dtype)
        elif side.offsets is None:
            out[self.examples, :n] = rows.to(out.dtype)
        else:
            out[self.index[self.valid]] = rows[self.valid].to(out.dtype)


def blocks(q_side: Side, kv_side: Side, batch: int, heads: int, device: torch.device) -> Iterator[tuple[Rows, Rows]]:
    """Pairs of query rows and key rows that together hold every example with queries and keys once."""
    q_lengths, kv_lengths = (lengths_of(side, batch, device) for side in (q_side, kv_side))
    order = torch.argsort(q_lengths * (q_side.offsets is not None) + kv_lengths * (kv_side.offsets is not None))
    order = order[(q_lengths[order] > 0) & (kv_lengths[order] > 0)]
    lengths = torch.stack([q_lengths[order], kv_lengths[order]], 1).tolist()
    begin = 0
    while begin < len(lengths):
        end, (n, m) = begin + 1, lengths[begin]
        while end < len(lengths):
            wider = max(n, lengths[end][0]), max(m, lengths[end][1])
            if (end + 1 - begin) * heads * wider[0] * wider[1] > _SCORES:
                break
            (n, m), end = wider, end + 1
        examples = order[begin:end]
        yield _rows(q_side, examples, q_lengths, n), _rows(kv_side, examples, kv_lengths, m)
        begin = end


def _rows(side: Side, examples: Tensor, lengths: Tensor, n: int) -> Rows:
    place = torch.arange(n, device=examples.device)
    valid = place < lengths[examples][:, None]
    start = side.offsets[:-1].long()[examples] if side.offsets is not None else torch.zeros_like(examples)
    return Rows(examples, torch.where(valid, start[:, None] + place, 0), valid)
