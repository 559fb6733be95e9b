"""FLOPs of jagged attention, on actual lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from faceter.kernels.operands import Side, batch_size
from faceter.kernels.padded_blocks import lengths_of


def visible_pairs(
    q: Tensor, k: Tensor, q_offsets: Tensor | None, kv_offsets: Tensor | None, left: int, right: int
) -> int:
    """Pairs of a query row and a key row that it sees, over all examples. Reads the offsets from the device."""
    batch, device = batch_size(q, k, q_offsets, kv_offsets), torch.device("cpu")
    sides = (Side.of(q, q_offsets, 0), Side.of(k, kv_offsets, 0))
    n, m = (lengths_of(s, batch, s.offsets.device if s.offsets is not None else device).cpu() for s in sides)
    if left < 0 and right < 0:
        return int((n * m).sum())
    # Row i sees keys max(0, i - left) up to min(m, i + right + 1).
    total = 0
    for rows, keys in zip(n.tolist(), m.tolist(), strict=True):
        i = torch.arange(rows)
        first = (i - left).clamp(min=0) if left >= 0 else torch.zeros_like(i)
        last = (i + right + 1).clamp(max=keys) if right >= 0 else torch.full_like(i, keys)
        total += int((last - first).clamp(min=0).sum())
    return total
