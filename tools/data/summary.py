"""Statistics of a column that goes by once, in bounded memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from faceter.data.check import is_list
from faceter.data.convert.hashing import fnv1a

_KEPT = 4096


class ColumnSummary:
    """What a column holds; of a list column, its elements and its lengths.

    Attributes:
        count, nulls: of values (elements of lists); `nulls` counts null lists too.
        low, high, mean: over the numbers that are not null or NaN; None if there are none.
        lengths: (longest + 1,) histogram of list lengths, or None if the column is no list.
    """

    def __init__(self, kind: pa.DataType):
        self.lengths = np.zeros(1, np.int64) if is_list(kind) else None
        self.count = self.nulls = self._numbers = 0
        self.low: float | None = None
        self.high: float | None = None
        self._total = 0.0
        self._smallest = np.zeros(0, np.uint64)
        self._full = False

    @property
    def mean(self) -> float | None:
        return self._total / self._numbers if self._numbers else None

    @property
    def distinct(self) -> int:
        """Distinct values: exact below 4096, else estimated from the 4096 smallest hashes, to about 1.6 %."""
        if not self._full:
            return len(self._smallest)
        # The k-th smallest of n uniform numbers in (0, 1) is about k / n (Bar-Yossef et al., 2002).
        return round((_KEPT - 1) / (float(self._smallest[-1]) / 2.0**64))

    def length_quantile(self, q: float) -> int:
        """Smallest length that at least a share q of the lists does not exceed."""
        total = np.cumsum(self.lengths)
        return int(np.searchsorted(total, q * total[-1]))

    def add(self, column: pa.ChunkedArray) -> None:
        for chunk in column.chunks:
            self._add(chunk)

    def _add(self, array: pa.Array) -> None:
        if self.lengths is not None:
            self.nulls += array.null_count
            counts = np.bincount(array.value_lengths().fill_null(0).to_numpy())
            size = max(len(counts), len(self.lengths))
            self.lengths = np.pad(self.lengths, (0, size - len(self.lengths))) + np.pad(counts, (0, size - len(counts)))
            array = array.flatten()
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        self.count += len(array)
        self.nulls += array.null_count
        array = array.drop_null()
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            self._distinct(fnv1a(pc.unique(array).cast(pa.string())))
            return
        values = array.cast(pa.int8()).to_numpy() if pa.types.is_boolean(array.type) else array.to_numpy()
        values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        if not len(values):
            return
        self._numbers += len(values)
        self._total += float(values.sum(dtype=np.float64))
        low, high = values.min().item(), values.max().item()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        bits = values.astype(np.float64).view(np.uint64) if values.dtype.kind == "f" else values.astype(np.uint64)
        self._distinct(bits)

    def _distinct(self, keys: np.ndarray) -> None:
        hashes = _mix(keys)
        if self._full:
            hashes = hashes[hashes < self._smallest[-1]]
        merged = np.union1d(self._smallest, hashes)
        self._full |= len(merged) > _KEPT
        self._smallest = merged[:_KEPT]


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele et al., 2014): neighbouring integers to independent-looking ones."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def roles(schema) -> dict[str, str]:
    """Column -> its role in words, in the schema's order."""
    out = {label.name: "label" for label in schema.labels}
    out |= {c.name: "dense" for c in schema.dense}
    out |= {c.name: f"sparse, table {c.table_name} ({c.num_embeddings})" for c in schema.sparse}
    for g in schema.sequences:
        out |= {c.name: f"{g.name}: id, table {c.table_name} ({c.num_embeddings})" for c in g.ids}
        out |= {c.name: f"{g.name}: dense" for c in g.dense}
        out |= {g.timestamp: f"{g.name}: timestamp"} if g.timestamp else {}
    for role, name in (("timestamp", schema.timestamp), ("weight", schema.weight)):
        out |= {name: role} if name else {}
    return out | ({schema.domain.column: "domain"} if schema.domain else {})
