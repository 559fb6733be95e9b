"""The orders of an epoch: of row groups over the data set, and of rows inside a bounded buffer.

Both are functions of the seed and the place alone, never of what was drawn before, so that a reader can resume anywhere
and several workers can shuffle different buffers.
"""

from __future__ import annotations

import numpy as np

# First word of each key: numpy pads keys with zeros, so that keys of two lengths could be the same.
_ROW_GROUPS, _ROWS = 1, 2


def row_group_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """(count,) int64: a permutation of the row groups, the same on every rank."""
    return np.random.default_rng([_ROW_GROUPS, seed, epoch]).permutation(count)


def row_order(rows: int, seed: int, epoch: int, rank: int, block: int) -> np.ndarray:
    """(rows,) int64: a permutation of the rows in one buffer."""
    return np.random.default_rng([_ROWS, seed, epoch, rank, block]).permutation(rows)
