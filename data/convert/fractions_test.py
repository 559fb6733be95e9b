"""Splitting by order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faceter.data.convert.fractions import OrderSplit
from faceter.data.errors import DataError


@given(st.integers(0, 200), st.floats(0, 0.49), st.floats(0, 0.49), st.integers(1, 60))
def test_pieces_cover_all_rows_in_order(num_rows, valid, test, block):
    split = OrderSplit(num_rows, valid, test)
    names = []
    for first in range(0, num_rows, block):
        count = min(block, num_rows - first)
        inside = 0
        for name, start, length in split.pieces(first, count):
            assert start == inside
            inside += length
            names += [name] * length
        assert inside == count
    tests, valids = round(num_rows * test), round(num_rows * valid)
    assert names == ["train"] * (num_rows - tests - valids) + ["valid"] * valids + ["test"] * tests


@pytest.mark.parametrize("valid, test", [(0.5, 0.5), (-0.1, 0.2), (0.2, float("nan"))])
def test_fractions_that_leave_nothing(valid, test):
    with pytest.raises(DataError, match="no training rows"):
        OrderSplit(10, valid, test)
