"""Tile lists in one kernel: each program places a few examples by counting the tiles of all that come before them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from faceter.kernels.schedule.reference import most_tiles

# Every program reads all offsets: beyond this, sorting is cheaper.
MOST_EXAMPLES = 1 << 15
_OWN, _OTHERS, _AT_ONCE = 16, 256, 32


@triton.jit
def _load(offsets, other_offsets, i, batch, total, tile, ORDERED: tl.constexpr):
    """(tiles, cost) of examples i; the rows past offsets[B] are example B, which comes last."""
    start = tl.load(offsets + i, mask=i <= batch, other=0).to(tl.int64)
    end = tl.load(offsets + i + 1, mask=i < batch, other=0).to(tl.int64)
    end = tl.where(i == batch, total, end)
    # Illegal offsets may not lead out of memory: at most `total` rows each, and the list has an end.
    count = tl.minimum(tl.maximum(end - start, 0), total)
    tiles = tl.where(i <= batch, (count + tile - 1) // tile, 0).to(tl.int32)
    cost = tl.zeros_like(tiles)
    if ORDERED:
        first = tl.load(other_offsets + i, mask=i < batch, other=0)
        last = tl.load(other_offsets + i + 1, mask=i < batch, other=0)
        cost = (last - first).to(tl.int32)
    return tiles, tl.where(i < batch, cost, -1)


@triton.jit(do_not_specialize=["batch", "total", "most"])
def _tile_list_kernel(
    offsets, other_offsets, out, batch, total, tile, most,
    ORDERED: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * OWN + tl.arange(0, OWN)
    tiles, cost = _load(offsets, other_offsets, i, batch, total, tile, ORDERED)
    begin = tl.zeros((OWN,), tl.int32)
    count = tl.zeros((), tl.int32)
    for first in range(0, batch + 1, OTHERS):
        j = first + tl.arange(0, OTHERS)
        their_tiles, their_cost = _load(offsets, other_offsets, j, batch, total, tile, ORDERED)
        before = (their_cost[None, :] > cost[:, None]) | (
            (their_cost[None, :] == cost[:, None]) & (j[None, :] < i[:, None])
        )
        begin += tl.sum(tl.where(before, their_tiles[None, :], 0), 1)
        count += tl.sum(their_tiles, 0)
    count = tl.minimum(count, most)
    if tl.program_id(0) == 0:
        tl.store(out, count)
        tl.store(out + 1, 0)
    for first in range(0, tl.max(tiles, 0), AT_ONCE):
        t = first + tl.arange(0, AT_ONCE)
        there = (t[None, :] < tiles[:, None]) & (begin[:, None] + t[None, :] < most)
        p = out + 2 + 2 * (begin[:, None] + t[None, :])
        tl.store(p, tl.broadcast_to(i[:, None], (OWN, AT_ONCE)), mask=there)
        tl.store(p + 1, tl.broadcast_to(t[None, :] * tile, (OWN, AT_ONCE)), mask=there)
    # The rest of the list is zero: each program has a part of it.
    for first in range(count + tl.program_id(0) * OTHERS, most, tl.num_programs(0) * OTHERS):
        t = first + tl.arange(0, OTHERS)
        p = out + 2 + 2 * t
        tl.store(p, tl.zeros((OTHERS,), tl.int32), mask=t < most)
        tl.store(p + 1, tl.zeros((OTHERS,), tl.int32), mask=t < most)


def tile_list_triton(offsets: Tensor, other_offsets: Tensor | None, total: int, tile: int) -> Tensor:
    """As `reference.tile_list_reference`."""
    batch = offsets.shape[0] - 1
    most = most_tiles(total, batch, tile)
    out = torch.empty((1 + most, 2), dtype=torch.int32, device=offsets.device)
    ordered = other_offsets is not None
    _tile_list_kernel[(triton.cdiv(batch + 1, _OWN),)](
        offsets, other_offsets if ordered else offsets, out, batch, total, tile, most, ordered, _OWN, _OTHERS, _AT_ONCE
    )
    return out
