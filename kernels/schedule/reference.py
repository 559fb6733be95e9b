"""Tile lists in plain torch, without host synchronisation."""

from __future__ import annotations

import torch
from torch import Tensor


def most_tiles(total: int, batch: int, tile: int) -> int:
    """A bound of the number of tiles that does not depend on the offsets' contents."""
    return total // tile + batch + 1


def tile_list_reference(offsets: Tensor, other_offsets: Tensor | None, total: int, tile: int) -> Tensor:
    """The tiles of all examples: those whose example has most rows on the other side first.

    Args:
        offsets: (B + 1,) int32 or int64, of the side that the tiles are of.
        other_offsets: (B + 1,), of the side that a tile's program loops over; None: all loops are of the same length.
        total: rows of the tensor on the tiles' own side.
        tile: rows of a tile.

    Returns:
        (1 + most_tiles, 2) int32: first (number of tiles, 0), then (example, first row in it) of each tile; the rest is
        zero. Examples with equally many rows keep their order, tiles of an example too. The rows past offsets[B]
        come last, as example B.
    """
    device, batch = offsets.device, offsets.shape[0] - 1
    end = torch.full((1,), total, dtype=torch.int64, device=device)
    lengths = torch.cat([offsets.long(), end]).diff()
    tiles = (lengths.clamp(0, total) + tile - 1) // tile  # illegal offsets may not make the list longer than it is
    cost = (
        torch.zeros(batch, dtype=torch.int64, device=device) if other_offsets is None else other_offsets.diff().long()
    )
    order = torch.argsort(torch.cat([cost, end - end - 1]), descending=True, stable=True)
    ends = tiles[order].cumsum(0)
    item = torch.arange(most_tiles(total, batch, tile), device=device)
    place = torch.searchsorted(ends, item, right=True).clamp(max=batch)
    example = order[place]
    row = (item - (ends - tiles[order])[place]) * tile
    head = torch.cat([ends[-1:].clamp(max=len(item)), end - end])
    tiles_there = torch.stack([example, row], 1) * (item < ends[-1])[:, None]
    return torch.cat([head[None], tiles_there]).int()
