"""Mean and standard deviation of a column that goes by once."""

from __future__ import annotations

import dataclasses

import numpy as np

from faceter.data.schema import DenseColumn


class Moments:
    """Running moments of what the model would see of a dense column with mean 0 and std 1 (after fill and log1p)."""

    def __init__(self, column: DenseColumn):
        self.column = column
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        """`values`: (N,) floats, NaN = missing."""
        x = values.astype(np.float64)
        if self.column.fill is not None:
            x = np.where(np.isnan(x), self.column.fill, x)
        if self.column.log1p:
            x = np.sign(x) * np.log1p(np.abs(x))
        if not len(x):
            return
        # Chan et al.'s update: a sum of squares minus the square of a sum would cancel.
        mean, count = float(x.mean()), self.count + len(x)
        shift = mean - self.mean
        self.squares += float(((x - mean) ** 2).sum()) + shift**2 * self.count * len(x) / count
        self.mean += shift * len(x) / count
        self.count = count

    def normalised(self) -> DenseColumn:
        """The column with this mean and std; a constant column keeps std 1."""
        std = float(np.sqrt(self.squares / self.count)) if self.count else 0.0
        return dataclasses.replace(self.column, mean=round(self.mean, 6), std=round(std, 6) or 1.0)
