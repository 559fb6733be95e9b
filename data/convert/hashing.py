"""Ids from strings, the same on every machine and in every version."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def fnv1a(values: pa.Array) -> np.ndarray:
    """64-bit FNV-1a of each string's UTF-8 bytes, (N,) uint64; `values` is an Arrow string array without nulls."""
    values = values.cast(pa.binary())
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    if not len(values):
        return np.zeros(0, np.uint64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    hashes = np.full(len(values), _OFFSET)
    # One pass per byte position, over the strings that are that long.
    for place in range(lengths.max()):
        rows = np.flatnonzero(lengths > place)
        hashes[rows] = (hashes[rows] ^ data[offsets[rows] + place]) * _PRIME
    return hashes


def hash_ids(values: pa.Array, num_embeddings: int) -> np.ndarray:
    """Ids (N,) int64 of strings: `1 + fnv1a(s) % (num_embeddings - 1)`; 0 for null and the empty string.

    Raises:
        ValueError: num_embeddings is smaller than 2.
    """
    if num_embeddings < 2:
        raise ValueError(f"hashing needs num_embeddings >= 2 (0 is the missing value), got {num_embeddings}")
    encoded = values.fill_null("").dictionary_encode()
    words = encoded.dictionary
    ids = (fnv1a(words) % np.uint64(num_embeddings - 1)).astype(np.int64) + 1
    ids[words.to_numpy(zero_copy_only=False) == ""] = 0
    return ids[encoded.indices.to_numpy()]
