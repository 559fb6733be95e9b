"""Length-balanced batches ("base batch shuffling" of Meta's GEM): rows move in sub-batches, heavy with light."""

from __future__ import annotations

import numpy as np


def balanced_order(total_lengths: np.ndarray, sizes: list[int], sub_batch: int) -> np.ndarray:
    """Order of rows in which consecutive pieces have nearly equal total length per row.

    Runs of `sub_batch` consecutive rows are sorted by their total length and dealt, heaviest first, each to the piece
    that lacks most per sub-batch still to come. Rows that fill no whole sub-batch of a piece stay in order at its end.

    Args:
        total_lengths: (n,) events of each row, in the order that the rows have now.
        sizes: rows of each piece (batch, or part of a batch), summing up to n.
        sub_batch: rows per sub-batch.

    Returns:
        (n,) int64, a permutation: row `order[i]` of now comes i-th.
    """
    slots = [size // sub_batch for size in sizes]
    whole = sum(slots) * sub_batch
    totals = total_lengths[:whole].reshape(-1, sub_batch).sum(1)
    lacking = np.array(slots) * (totals.mean() if totals.size else 0.0)
    free = np.array(slots)
    chosen: list[list[int]] = [[] for _ in sizes]
    for run in np.argsort(-totals, kind="stable"):
        piece = int(np.argmax(np.where(free > 0, lacking / np.maximum(free, 1), -np.inf)))
        chosen[piece].append(int(run))
        lacking[piece] -= totals[run]
        free[piece] -= 1
    order, rest = [], whole
    for runs, size in zip(chosen, sizes, strict=True):
        # Sorted: inside a piece the runs keep their order, so that heavy rows are not all in front.
        order += [np.arange(run * sub_batch, (run + 1) * sub_batch) for run in sorted(runs)]
        tail = size % sub_batch
        order.append(np.arange(rest, rest + tail))
        rest += tail
    return np.concatenate(order) if order else np.arange(0)
