"""Streaming moments equal those of the whole column."""

import numpy as np
import pytest

from faceter.data.convert.moments import Moments
from faceter.data.schema import DenseColumn


@pytest.mark.parametrize("log1p", [False, True])
def test_pieces_equal_the_whole(log1p):
    # A mean far from 0: a sum of squares in float32, or minus a squared sum, would miss the std.
    x = (np.random.default_rng(0).standard_normal(1000) + 1e6).astype(np.float32)
    x[::7] = np.nan
    moments = Moments(DenseColumn("x", log1p=log1p, fill=-2.0))
    for piece in (x[:1], x[1:1], x[1:400], x[400:]):
        moments.add(piece)
    seen = np.where(np.isnan(x), -2.0, x.astype(np.float64))
    seen = np.sign(seen) * np.log1p(np.abs(seen)) if log1p else seen
    column = moments.normalised()
    assert column.mean == pytest.approx(seen.mean(), rel=1e-6)
    assert column.std == pytest.approx(seen.std(), rel=1e-6)
    assert column.fill == -2.0


def test_constant_or_empty_column_keeps_std_1():
    moments = Moments(DenseColumn("x"))
    assert moments.normalised() == DenseColumn("x")
    moments.add(np.full(5, 3.0))
    assert moments.normalised() == DenseColumn("x", mean=3.0)
