"""Histories against a loop over all pairs of rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from faceter.data.convert.history import gather, past


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_past_is_the_same_user_strictly_before(rows):
    rows = sorted(rows)
    user = np.array([u for u, _ in rows], np.int64)
    time = np.array([t for _, t in rows], np.int64)
    start, end = past(user, time)
    lists = gather(np.arange(len(rows)), start, end).to_pylist()
    assert lists == [[k for k, (v, s) in enumerate(rows) if v == u and s < t] for u, t in rows]


def test_gather_takes_any_ranges():
    values = np.array([10, 11, 12, 13])
    lists = gather(values, np.array([2, 0, 3, 1]), np.array([4, 0, 3, 2]))
    assert lists.to_pylist() == [[12, 13], [], [], [11]]
