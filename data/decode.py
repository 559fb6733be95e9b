"""A row group as numpy arrays: checked, converted, normalised; lists as flat values with starts and lengths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from faceter.data.check import RowChecks, is_list, not_finite, outside_ids
from faceter.data.schema import DenseColumn, Domain, Schema, SequenceGroup, SparseColumn


@dataclass
class Jagged:
    """One or several list columns with the same lengths: row i of each is values[starts[i] : starts[i] + lengths[i]].

    Attributes:
        values: flat columns, all of the same length.
        starts: (n,) int64, not descending.
        lengths: (n,) int64.
    """

    values: list[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray


@dataclass
class Rows:
    """n decoded rows. Column orders are the schema's.

    Attributes:
        labels: (n, tasks) float32.
        dense: (n, dense columns) float32, normalised.
        weights: (n,) float32.
        timestamps: (n,) int64.
        domains: (n,) int64.
        sparse: column -> Jagged with one int64 column.
        events: group -> Jagged with the group's id columns (int64), its timestamps (int64, if any) and its dense
            columns (float32, normalised); only the newest `max_length` events of a row are addressed.
        reason: (n,) int32, -1 for a good row, else index into `problems`.
        problems: (file, column, problem) triples.
    """

    labels: np.ndarray
    dense: np.ndarray
    weights: np.ndarray
    timestamps: np.ndarray
    domains: np.ndarray
    sparse: dict[str, Jagged]
    events: dict[str, Jagged]
    reason: np.ndarray
    problems: list[tuple[str, str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def total_lengths(self) -> np.ndarray:
        """(n,) int64: events of each row over all groups."""
        total = np.zeros(len(self), np.int64)
        for jagged in self.events.values():
            total += jagged.lengths
        return total


def decode(table: pa.Table, schema: Schema, checks: RowChecks) -> Rows:
    """Checks and converts the rows of one row group (or a slice of it).

    What counts as a bad row: a null, NaN or out-of-[0, 1] label; a null, NaN or infinite number (a null or NaN with
    `fill` is legal); a negative or too large id; a null inside a list of ids or timestamps; lists of one group that
    disagree in length; a null row timestamp; a null, NaN, infinite or negative weight; an unknown domain.
    Legal: an empty list; a null list, read as empty; a null in a scalar id column, read as no id.

    Raises:
        DataError: a bad row, unless `checks` skips.
    """
    n = table.num_rows
    columns = {name: _one_chunk(table.column(name)) for name in schema.columns}
    labels = np.empty((n, len(schema.labels)), np.float32)
    for i, label in enumerate(schema.labels):
        labels[:, i] = _bounded(columns[label.name], label.name, checks, 1.0, "label")
    dense = np.empty((n, len(schema.dense)), np.float32)
    for i, column in enumerate(schema.dense):
        dense[:, i] = _dense(columns[column.name], column, checks, None)
    weights = _bounded(columns[schema.weight], schema.weight, checks, np.inf, "weight") if schema.weight else np.ones(n)
    timestamps = np.zeros(n, np.int64)
    if schema.timestamp:
        timestamps = _timestamps(columns[schema.timestamp], schema.timestamp, checks, None)
    domains = _domains(columns[schema.domain.column], schema.domain, checks) if schema.domain else np.zeros(n, np.int64)
    sparse = {c.name: _sparse(columns[c.name], c, checks) for c in schema.sparse}
    events = {g.name: _events(columns, g, checks) for g in schema.sequences}
    return Rows(
        labels,
        dense,
        weights.astype(np.float32),
        timestamps,
        domains,
        sparse,
        events,
        checks.reason,
        [(str(checks.file), column, problem) for column, problem in checks.problems],
    )


def concatenate(parts: list[Rows]) -> Rows:
    """Rows of several row groups one after the other; a single one is handed on as it is."""
    if len(parts) == 1:
        return parts[0]

    def join(name):
        return np.concatenate([getattr(p, name) for p in parts])

    def join_jagged(name, key):
        jagged = [getattr(p, name)[key] for p in parts]
        base = np.cumsum([0] + [len(j.values[0]) for j in jagged[:-1]])
        return Jagged(
            [np.concatenate(v) for v in zip(*(j.values for j in jagged), strict=True)],
            np.concatenate([j.starts + b for j, b in zip(jagged, base, strict=True)]),
            np.concatenate([j.lengths for j in jagged]),
        )

    problem_base = np.cumsum([0] + [len(p.problems) for p in parts[:-1]])
    reason = [np.where(p.reason < 0, -1, p.reason + b) for p, b in zip(parts, problem_base, strict=True)]
    return Rows(
        join("labels"),
        join("dense"),
        join("weights"),
        join("timestamps"),
        join("domains"),
        {key: join_jagged("sparse", key) for key in parts[0].sparse},
        {key: join_jagged("events", key) for key in parts[0].events},
        np.concatenate(reason),
        [problem for p in parts for problem in p.problems],
    )


def jagged_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions of the elements of the given rows one after the other: (sum of lengths,) int64."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    positions = np.repeat(starts - (ends - lengths), lengths)
    positions += np.arange(total)
    return positions


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numpy(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """Values (a view where possible, 0 at nulls) and positions of nulls, or None."""
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False), None
    filled = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0)
    return filled.to_numpy(zero_copy_only=False), np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))


def _rows_of(positions: np.ndarray, starts: np.ndarray | None, lengths: np.ndarray | None, what: np.ndarray):
    """Rows to which flat positions belong, with the entries of `what` at them. Positions in no row (what lies under a
    null list) are left out. Without starts, a position is a row."""
    if starts is None:
        return positions, what[positions]
    # Of rows that start at the same place only the last can have elements.
    rows = np.searchsorted(starts, positions, side="right") - 1
    inside = (rows >= 0) & (positions < starts[rows] + lengths[rows])
    return rows[inside], what[positions[inside]]


def _bounded(array: pa.Array, name: str, checks: RowChecks, high: float, what: str) -> np.ndarray:
    """Labels and weights: (n,) float64 in [0, high]."""
    values, nulls = _numpy(array)
    if nulls is not None:
        checks.fail(nulls, name, f"null {what}")
    values = values.astype(np.float64)
    bad = not_finite(values)
    if bad is not None:
        checks.fail(bad, name, f"{what} is not finite", values[bad])
        values[bad] = 0.0
    outside = np.flatnonzero((values < 0) | (values > high))
    limits = "is negative" if high == np.inf else "outside [0, 1]"
    checks.fail(outside, name, f"{what} {limits}", values[outside])
    return values


def _dense(array: pa.Array, column: DenseColumn, checks: RowChecks, rows: tuple | None) -> np.ndarray:
    """Numbers, filled and normalised: float32. `rows` = (starts, lengths) if the array is a list column's child."""
    starts, lengths = rows or (None, None)
    values, nulls = _numpy(array)
    # float32 holds integers up to 2^24 only; whatever is wider is normalised in float64 first.
    values = values.astype(np.float32 if values.dtype in (np.float16, np.float32, np.int8, np.uint8) else np.float64)
    if nulls is not None:
        if column.fill is None:
            checks.fail(_rows_of(nulls, starts, lengths, values)[0], column.name, "null number and no `fill`")
        values[nulls] = column.fill or 0.0
    bad = not_finite(values)
    if bad is not None:
        nan = bad[np.isnan(values[bad])]
        if column.fill is None:
            checks.fail(_rows_of(nan, starts, lengths, values)[0], column.name, "NaN and no `fill`")
        values[nan] = column.fill or 0.0
        infinite = np.setdiff1d(bad, nan, assume_unique=True)
        checks.fail(*_args(infinite, starts, lengths, values, column.name, "number is not finite"))
        values[infinite] = 0.0
    if column.log1p:
        values = np.copysign(np.log1p(np.abs(values)), values)
    if column.mean != 0.0 or column.std != 1.0:
        values = (values - column.mean) / column.std
    return values.astype(np.float32, copy=False)


def _args(positions, starts, lengths, values, column, problem):
    rows, found = _rows_of(positions, starts, lengths, values)
    return rows, column, problem, found


def _ids(array: pa.Array, column: SparseColumn, checks: RowChecks, rows: tuple | None) -> np.ndarray:
    """Ids: int64. A null inside a list is bad; in a scalar column the caller has made it an empty row."""
    starts, lengths = rows or (None, None)
    values, nulls = _numpy(array)
    if nulls is not None and rows is not None:
        checks.fail(_rows_of(nulls, starts, lengths, values)[0], column.name, "null id inside a list")
    bad = outside_ids(values, column.num_embeddings)
    if bad is not None:
        problem = f"id outside [0, {column.num_embeddings})"
        checks.fail(*_args(bad, starts, lengths, values, column.name, problem))
    return values.astype(np.int64, copy=False)


def _timestamps(array: pa.Array, name: str, checks: RowChecks, rows: tuple | None) -> np.ndarray:
    starts, lengths = rows or (None, None)
    values, nulls = _numpy(array)
    if nulls is not None:
        checks.fail(_rows_of(nulls, starts, lengths, values)[0], name, "null timestamp")
    if values.dtype == np.uint64:
        bad = np.flatnonzero(values >= np.uint64(1 << 63))
        checks.fail(*_args(bad, starts, lengths, values, name, "timestamp does not fit int64"))
    return values.astype(np.int64, copy=False)


def _domains(array: pa.Array, domain: Domain, checks: RowChecks) -> np.ndarray:
    """Index of each row's domain: (n,) int64."""
    names = array.dictionary if isinstance(array, pa.DictionaryArray) else array
    if pa.types.is_integer(names.type):
        values, _ = _numpy(names)
        order = np.argsort(domain.values)
        wanted = np.asarray(domain.values)[order]
        place = np.searchsorted(wanted, values).clip(max=len(wanted) - 1)
        codes = np.where(wanted[place] == values, order[place], -1)
        if names.null_count:
            codes[names.is_null().to_numpy(zero_copy_only=False)] = -1
    else:
        found = pc.index_in(names, value_set=pa.array(domain.values, names.type), skip_nulls=True)
        codes = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if isinstance(array, pa.DictionaryArray):
        indices = array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        codes = np.append(codes, -1)[indices]
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        shown = array.take(pa.array(unknown)).to_pylist()
        checks.fail(unknown, domain.column, f"unknown domain (known: {', '.join(map(str, domain.values))})", shown)
    return codes.astype(np.int64, copy=False)


def _list_parts(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Flat child, starts and lengths of a list array; a null list has length 0."""
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    first, last = int(offsets[0]), int(offsets[-1])
    return array.values.slice(first, last - first), offsets[:-1] - first, lengths


def _sparse(array: pa.Array, column: SparseColumn, checks: RowChecks) -> Jagged:
    if is_list(array.type):
        child, starts, lengths = _list_parts(array)
        return Jagged([_ids(child, column, checks, (starts, lengths))], starts, lengths)
    lengths = np.ones(len(array), np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return Jagged([_ids(array, column, checks, None)], np.arange(len(array)), lengths)


def _events(columns: dict[str, pa.Array], group: SequenceGroup, checks: RowChecks) -> Jagged:
    names = [c.name for c in group.ids] + [group.timestamp] * bool(group.timestamp) + [c.name for c in group.dense]
    parts = [_list_parts(columns[name]) for name in names]
    _, starts, lengths = parts[0]
    for name, (_, _, other) in zip(names[1:], parts[1:], strict=True):
        odd = np.flatnonzero(other != lengths)
        if odd.size:
            problem = f"lists of group {group.name!r} disagree in length ({names[0]} has another)"
            checks.fail(odd, name, problem, other[odd])
    values, by_name = [], dict(zip(names, parts, strict=True))
    for column in group.ids:
        child, *rows = by_name[column.name]
        values.append(_ids(child, column, checks, tuple(rows)))
    if group.timestamp:
        child, *rows = by_name[group.timestamp]
        values.append(_timestamps(child, group.timestamp, checks, tuple(rows)))
    for column in group.dense:
        child, *rows = by_name[column.name]
        values.append(_dense(child, column, checks, tuple(rows)))
    good = checks.reason < 0
    if not good.all():
        lengths = np.where(good, lengths, 0)
    if not all(len(v) == len(values[0]) and np.array_equal(p[1], starts) for v, p in zip(values, parts, strict=True)):
        # Same lengths but different places: bad rows that are skipped, or something stored under a null list.
        values = [v[jagged_positions(p[1], lengths)] for v, p in zip(values, parts, strict=True)]
        starts = np.cumsum(lengths) - lengths
    newest = np.minimum(lengths, group.max_length)
    return Jagged(values, starts + (lengths - newest), newest)
