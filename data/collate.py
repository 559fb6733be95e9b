"""Decoded rows to batches: a few flat arrays in one buffer, no padding, no Python per row."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from faceter.data.decode import Jagged, Rows, jagged_positions
from faceter.data.schema import Schema

_ALIGNMENT = 64


@dataclass
class Chunk:
    """n rows of a batch, or all of them. Column orders are the schema's.

    Attributes:
        labels, dense, weights, timestamps, domains: as in `Batch`.
        bag_lengths: (bag columns, n) int64.
        bag_values: int64, ids of the first bag column, then of the next, ...
        row_lengths, row_values: the same of the row columns (`Schema.row_columns`).
        event_timestamps: per group (T,) int64.
        event_dense: per group (T, K) float32.
        bag_totals, row_totals: number of ids of each column.
        dropped: (file, column, problem) -> rows left out.
    """

    labels: np.ndarray
    dense: np.ndarray
    weights: np.ndarray
    timestamps: np.ndarray
    domains: np.ndarray
    bag_lengths: np.ndarray
    bag_values: np.ndarray
    row_lengths: np.ndarray
    row_values: np.ndarray
    event_timestamps: list[np.ndarray]
    event_dense: list[np.ndarray]
    bag_totals: tuple[int, ...]
    row_totals: tuple[int, ...]
    dropped: Counter = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ChunkShape:
    """All that is needed to find a chunk's arrays in a buffer."""

    rows: int
    bag_totals: tuple[int, ...]
    row_totals: tuple[int, ...]

    def _arrays(self, schema: Schema):
        n, events = self.rows, self._events(schema)
        yield "labels", np.float32, (n, len(schema.labels))
        yield "dense", np.float32, (n, len(schema.dense))
        yield "weights", np.float32, (n,)
        yield "timestamps", np.int64, (n,)
        yield "domains", np.int64, (n,)
        yield "bag_lengths", np.int64, (len(self.bag_totals), n)
        yield "bag_values", np.int64, (sum(self.bag_totals),)
        yield "row_lengths", np.int64, (len(self.row_totals), n)
        yield "row_values", np.int64, (sum(self.row_totals),)
        for _, total in events:
            yield "event_timestamps", np.int64, (total,)
        for group, total in events:
            yield "event_dense", np.float32, (total, len(group.dense))

    def _events(self, schema: Schema):
        """Each group with its number of events: that of its first id column."""
        first = itertools.accumulate([0] + [len(g.ids) for g in schema.sequences[:-1]])
        return [(group, self.row_totals[i]) for group, i in zip(schema.sequences, first, strict=False)]

    def nbytes(self, schema: Schema) -> int:
        return sum(_aligned(np.prod(shape) * np.dtype(dtype).itemsize) for _, dtype, shape in self._arrays(schema))

    def carve(self, schema: Schema, buffer: np.ndarray) -> Chunk:
        """The chunk whose arrays are views of `buffer` (uint8)."""
        found: dict[str, list[np.ndarray]] = {"event_timestamps": [], "event_dense": []}
        at = 0
        for name, dtype, shape in self._arrays(schema):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            array = buffer[at : at + size].view(dtype).reshape(shape)
            at += _aligned(size)
            found.setdefault(name, []).append(array)
        lists = {name: found.pop(name) for name in ("event_timestamps", "event_dense")}
        arrays = {name: array for name, (array,) in found.items()}
        return Chunk(**arrays, **lists, bag_totals=self.bag_totals, row_totals=self.row_totals)


def _aligned(size: int) -> int:
    return -(-int(size) // _ALIGNMENT) * _ALIGNMENT


def _jagged_columns(rows: Rows, schema: Schema) -> tuple[list[Jagged], list[Jagged]]:
    """The Jagged behind each bag column, and behind each row column."""
    events = [rows.events[g.name] for g in schema.sequences for _ in g.ids]
    shared = [rows.sparse[c.name] for c in schema.row_columns[len(events) :]]
    return [rows.sparse[c.name] for c in schema.bag_columns], events + shared


def good_rows(rows: Rows, index: np.ndarray | slice) -> tuple[np.ndarray | slice, Counter]:
    """Leaves the bad rows out of an index, and counts them by (file, column, problem)."""
    reason = rows.reason[index]
    if not rows.problems or (reason < 0).all():
        return index, Counter()
    if isinstance(index, slice):
        index = np.arange(index.start, index.stop)
    dropped = Counter({rows.problems[i]: int(n) for i, n in enumerate(np.bincount(reason[reason >= 0])) if n})
    return index[reason < 0], dropped


def shape_of(rows: Rows, index: np.ndarray | slice, schema: Schema) -> ChunkShape:
    """Shape of the chunk of the rows at `index` (positions, or a slice with both ends)."""
    n = index.stop - index.start if isinstance(index, slice) else len(index)
    bag, row = _jagged_columns(rows, schema)
    totals = {id(j): int(j.lengths[index].sum()) for j in bag + row}
    return ChunkShape(n, tuple(totals[id(j)] for j in bag), tuple(totals[id(j)] for j in row))


def collate(rows: Rows, index: np.ndarray | slice, schema: Schema, chunk: Chunk) -> None:
    """Writes the rows at `index` into the arrays of `chunk`, which has their shape."""
    chunk.labels[:] = rows.labels[index]
    chunk.dense[:] = rows.dense[index]
    chunk.weights[:] = rows.weights[index]
    chunk.timestamps[:] = rows.timestamps[index]
    chunk.domains[:] = rows.domains[index]
    bag_parts = _split(chunk.bag_values, chunk.bag_totals)
    row_parts = _split(chunk.row_values, chunk.row_totals)
    for i, column in enumerate(schema.bag_columns):
        jagged = rows.sparse[column.name]
        chunk.bag_lengths[i] = jagged.lengths[index]
        _gather(jagged, index, [bag_parts[i]])
    at = 0
    for g, group in enumerate(schema.sequences):
        jagged = rows.events[group.name]
        width = len(group.ids)
        chunk.row_lengths[at : at + width] = jagged.lengths[index]
        stamps = [chunk.event_timestamps[g]] if group.timestamp else []
        if not group.timestamp:
            chunk.event_timestamps[g][:] = 0
        dense = [chunk.event_dense[g][:, k] for k in range(len(group.dense))]
        _gather(jagged, index, [*row_parts[at : at + width], *stamps, *dense])
        at += width
    for i in range(at, len(row_parts)):
        jagged = rows.sparse[schema.row_columns[i].name]
        chunk.row_lengths[i] = jagged.lengths[index]
        _gather(jagged, index, [row_parts[i]])


def _split(values: np.ndarray, totals: Sequence[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(totals)[:-1]) if totals else []


def _gather(jagged: Jagged, index: np.ndarray | slice, outs: list[np.ndarray]) -> None:
    """Elements of the rows at `index`, one row after the other, of each value column into each of `outs`."""
    starts, lengths = jagged.starts[index], jagged.lengths[index]
    if not len(starts) or not len(outs[0]):
        return
    first, end = int(starts[0]), int(starts[-1] + lengths[-1])
    if isinstance(index, slice) and end - first == len(outs[0]):  # no gap between the rows
        for values, out in zip(jagged.values, outs, strict=True):
            out[:] = values[first:end]
        return
    positions = jagged_positions(starts, lengths)
    for values, out in zip(jagged.values, outs, strict=True):
        if out.flags.c_contiguous:
            np.take(values, positions, out=out, mode="clip")  # "clip": the default makes a buffer first
        else:
            out[:] = values[positions]


def merge(chunks: list[Chunk], schema: Schema) -> Chunk:
    """The parts of one batch as one chunk; a single part is handed on as it is."""
    if len(chunks) == 1:
        return chunks[0]

    def keyed(values, totals):
        parts = [_split(getattr(c, values), getattr(c, totals)) for c in chunks]
        flat = [part for parts_of_key in zip(*parts, strict=True) for part in parts_of_key]
        return np.concatenate(flat) if flat else getattr(chunks[0], values)

    def rows(name, axis=0):
        return np.concatenate([getattr(c, name) for c in chunks], axis)

    groups = range(len(schema.sequences))
    return Chunk(
        rows("labels"),
        rows("dense"),
        rows("weights"),
        rows("timestamps"),
        rows("domains"),
        rows("bag_lengths", 1),
        keyed("bag_values", "bag_totals"),
        rows("row_lengths", 1),
        keyed("row_values", "row_totals"),
        [np.concatenate([c.event_timestamps[g] for c in chunks]) for g in groups],
        [np.concatenate([c.event_dense[g] for c in chunks]) for g in groups],
        tuple(map(sum, zip(*(c.bag_totals for c in chunks), strict=True))),
        tuple(map(sum, zip(*(c.row_totals for c in chunks), strict=True))),
        sum((c.dropped for c in chunks), Counter()),
    )
