"""Histories of the strict past from a log sorted by user and time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def past(user: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, end), each (N,) int64: the rows [start[n], end[n]) are those of row n's user with a smaller time.

    Args:
        user, time: (N,) integers, sorted by user, then time.
    """
    start = np.searchsorted(user, user, side="left")
    change = np.r_[True, (user[1:] != user[:-1]) | (time[1:] != time[:-1])] if len(user) else np.zeros(0, bool)
    return start, np.maximum.accumulate(np.where(change, np.arange(len(user)), 0))


def gather(values: np.ndarray, first: np.ndarray, end: np.ndarray) -> pa.ListArray:
    """List column with `values[first[n] : end[n]]` in row n."""
    lengths = end - first
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - first, lengths)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values[places]))
