"""Splitting by order: the first rows train, the last ones are held out."""

from __future__ import annotations

from collections.abc import Iterator

from faceter.data.convert.folder import SPLITS
from faceter.data.errors import DataError


class OrderSplit:
    """Which split row n of N belongs to: train, then valid, then test.

    Raises:
        DataError: the fractions leave no training row.
    """

    def __init__(self, num_rows: int, valid_fraction: float, test_fraction: float):
        if not (valid_fraction >= 0 and test_fraction >= 0 and valid_fraction + test_fraction < 1):
            raise DataError(f"fractions of validation {valid_fraction} and test {test_fraction} leave no training rows")
        test = round(num_rows * test_fraction)
        valid = round(num_rows * valid_fraction)
        self.ends = (num_rows - test - valid, num_rows - test, num_rows)

    def pieces(self, first: int, count: int) -> Iterator[tuple[str, int, int]]:
        """(split, start, length) of the pieces of rows [first, first + count); `start` counts from `first`."""
        start = first
        for split, end in zip(SPLITS, self.ends, strict=True):
            stop = min(end, first + count)
            if stop > start:
                yield split, start - first, stop - start
                start = stop
