"""The hash is FNV-1a, on every machine and for every way in which Arrow can hold the strings."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faceter.data.convert.hashing import fnv1a, hash_ids


def plain_fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def test_published_values():
    # Fowler, Noll, Vo: test vectors of 64-bit FNV-1a.
    assert fnv1a(pa.array(["", "a", "foobar"])).tolist() == [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]


@given(st.lists(st.none() | st.text(max_size=12), max_size=20), st.integers(0, 3), st.integers(2, 1000))
def test_ids_are_the_formula(words, skip, size):
    array = pa.array(["x", "yy", "zzz", *words], pa.string())[skip:]
    ids = hash_ids(array, size)
    assert ids.dtype == np.int64
    assert ids.tolist() == [1 + plain_fnv1a(w) % (size - 1) if w else 0 for w in array.to_pylist()]


def test_needs_two_rows():
    with pytest.raises(ValueError, match="got 1"):
        hash_ids(pa.array(["a"]), 1)
