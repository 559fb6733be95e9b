"""Streaming column statistics against numpy on the whole column."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faceter.tools.data.summary import ColumnSummary

NUMBERS = st.none() | st.integers(-(2**62), 2**62)


def summary(values, kind, pieces=3):
    array = pa.array(values, kind)
    result = ColumnSummary(kind)
    size = len(array) // pieces + 1
    result.add(pa.chunked_array([array[i : i + size] for i in range(0, len(array), size)], kind))
    return result


@given(st.lists(NUMBERS, max_size=30))
def test_integers(values):
    seen = [v for v in values if v is not None]
    s = summary(values, pa.int64())
    assert (s.count, s.nulls, s.distinct) == (len(values), values.count(None), len(set(seen)))
    assert (s.low, s.high) == (min(seen, default=None), max(seen, default=None))
    assert s.lengths is None
    assert s.mean == (pytest.approx(sum(seen) / len(seen), abs=2**12) if seen else None)


@given(st.lists(st.none() | st.lists(NUMBERS, max_size=5), max_size=20))
def test_lists(values):
    seen = [v for row in values if row for v in row]
    numbers = [v for v in seen if v is not None]
    s = summary(values, pa.list_(pa.int64()))
    assert (s.count, s.nulls, s.distinct) == (len(seen), values.count(None) + seen.count(None), len(set(numbers)))
    assert (s.low, s.high) == (min(numbers, default=None), max(numbers, default=None))
    lengths = sorted(len(row or ()) for row in values)
    for q in (0.25, 0.5, 1.0):
        expected = int(np.quantile(lengths, q, method="inverted_cdf")) if lengths else 0
        assert s.length_quantile(q) == expected


def test_nan_counts_as_no_number_and_strings_have_no_range():
    s = summary([1.5, float("nan"), None, 3.0], pa.float32())
    assert (s.count, s.nulls, s.low, s.high, s.mean, s.distinct) == (4, 1, 1.5, 3.0, 2.25, 2)
    for kind in (pa.string(), pa.dictionary(pa.int8(), pa.string())):
        s = summary(["a", "b", None, "a"], kind)
        assert (s.count, s.nulls, s.low, s.mean, s.distinct) == (4, 1, None, None, 2)
    assert summary([True, False, True], pa.bool_()).mean == pytest.approx(2 / 3)


@pytest.mark.parametrize("true", [4096, 50_000])
def test_many_distinct_values_are_estimated(true):
    values = np.random.default_rng(0).integers(0, true, 400_000)
    s = summary(values, pa.int64())
    # Of the 4096 smallest hashes the estimate's standard deviation is 1 / sqrt(4096).
    assert s.distinct == pytest.approx(len(np.unique(values)), rel=0.05)
