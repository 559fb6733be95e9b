"""For tests: drawn schemas and tables, and the slow reading of them, row by row."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn

if TYPE_CHECKING:  # it imports torchrec, which takes seconds
    from faceter.data.batch import Batch

_INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOAT_TYPES = [pa.float32(), pa.float64()]
_IDS = 100


def full_schema(max_length: int = 5) -> Schema:
    """A schema that uses every role."""
    return Schema(
        name="full",
        labels=(Label("click"), Label("buy", 0.5)),
        dense=(DenseColumn("price", log1p=True, mean=0.5, std=2.0), DenseColumn("age", fill=1.0)),
        sparse=(SparseColumn("user", _IDS), SparseColumn("tags", _IDS), SparseColumn("item", _IDS, table="item")),
        sequences=(
            SequenceGroup(
                "click",
                (SparseColumn("click_item", _IDS, table="item"), SparseColumn("click_cat", _IDS)),
                (DenseColumn("click_dwell", fill=0.0), DenseColumn("click_price", log1p=True)),
                "click_time",
                max_length,
            ),
            SequenceGroup("view", (SparseColumn("view_item", _IDS),), max_length=3),
        ),
        timestamp="time",
        weight="weight",
        domain=Domain("surface", ("feed", "reels")),
    )


def full_table(rows: int, seed: int = 0) -> pa.Table:
    """Rows that fit `full_schema`; `time` is the row's number."""
    rng = np.random.default_rng(seed)

    def lists(lengths, draw, kind):
        return pa.array([draw(n) for n in lengths], pa.list_(kind))

    def ids(n):
        return rng.integers(0, _IDS, n)

    click = rng.integers(0, 9, rows)
    return pa.table(
        {
            "click": pa.array(rng.integers(0, 2, rows), pa.int8()),
            "buy": pa.array(rng.random(rows), pa.float32()),
            "price": pa.array(rng.normal(0, 9, rows), pa.float32()),
            "age": pa.array([None if i % 5 == 3 else i for i in range(rows)], pa.int64()),
            "user": pa.array([None if i % 7 == 2 else i % _IDS for i in range(rows)], pa.int32()),
            "tags": lists(rng.integers(0, 4, rows), ids, pa.int64()),
            "item": pa.array(ids(rows), pa.int64()),
            "click_item": lists(click, ids, pa.int64()),
            "click_cat": lists(click, ids, pa.int32()),
            "click_dwell": lists(click, rng.random, pa.float32()),
            "click_price": lists(click, rng.random, pa.float64()),
            "click_time": lists(click, ids, pa.int64()),
            "view_item": lists(rng.integers(0, 3, rows), ids, pa.int64()),
            "time": pa.array(range(rows), pa.int64()),
            "weight": pa.array(rng.random(rows), pa.float32()),
            "surface": pa.array(rng.choice(["feed", "reels"], rows).tolist()).dictionary_encode(),
            "unused": pa.array(["x"] * rows),
        }
    )


def write(folder: Path, table: pa.Table, files: int = 1, row_group_size: int = 1000) -> Path:
    """Spreads the rows over `part-*.parquet` files in order."""
    folder.mkdir(parents=True, exist_ok=True)
    cuts = np.linspace(0, table.num_rows, files + 1).astype(int)
    for i, (a, b) in enumerate(itertools.pairwise(cuts)):
        pq.write_table(table.slice(a, b - a), folder / f"part-{i:05}.parquet", row_group_size=row_group_size)
    return folder


@st.composite
def schemas_and_tables(draw, max_rows: int = 24) -> tuple[Schema, pa.Table]:
    """A drawn subset of the roles, and rows for it in drawn types, with nulls where they are legal."""
    rows = draw(st.integers(1, max_rows))
    columns: dict[str, pa.Array] = {}

    def put(name, values, kind):
        columns[name] = pa.array(values, kind)

    def many(element, n=rows):
        return draw(st.lists(element, min_size=n, max_size=n))

    def wrap(kind):
        return draw(st.sampled_from([pa.list_, pa.large_list]))(kind)

    finite = st.floats(-100, 100, width=32)
    ids = st.integers(0, _IDS - 1)

    def dense(name, lengths=None):
        kind = draw(st.sampled_from(_FLOAT_TYPES + _INT_TYPES[:4]))
        fill = draw(st.sampled_from([None, 2.5]))
        element = finite if kind in _FLOAT_TYPES else st.integers(-100, 100)
        if fill is not None:
            element = st.one_of(element, st.none(), *([st.just(math.nan)] if kind in _FLOAT_TYPES else []))
        values = many(element) if lengths is None else [many(element, n) for n in lengths]
        put(name, values, kind if lengths is None else wrap(kind))
        return DenseColumn(name, draw(st.booleans()), draw(st.sampled_from([0.0, 3.0])), 2.0, fill)

    def id_column(name, lengths):
        put(name, [None if n == 0 and draw(st.booleans()) else many(ids, n) for n in lengths], wrap(integer()))
        return SparseColumn(name, _IDS, draw(st.sampled_from([None, "shared"])))

    def integer():
        return draw(st.sampled_from(_INT_TYPES))

    def lengths():
        return many(st.integers(0, 4))

    kind = draw(st.sampled_from(_FLOAT_TYPES + _INT_TYPES + [pa.bool_()]))
    put("label", many(st.booleans() if kind == pa.bool_() else st.integers(0, 1)), kind)
    sparse = []
    if draw(st.booleans()):
        put("scalar_id", many(st.none() | ids), integer())
        sparse.append(SparseColumn("scalar_id", _IDS, draw(st.sampled_from([None, "shared"]))))
    if draw(st.booleans()):
        sparse.append(id_column("list_id", lengths()))
    timestamp = draw(st.sampled_from([None, "time"]))
    if timestamp:
        put("time", many(ids), integer())
    groups = []
    for name in ["a", "b"][: draw(st.integers(0, 2))]:
        sizes = lengths()
        id_columns = tuple(id_column(f"{name}_id{i}", sizes) for i in range(draw(st.integers(1, 2))))
        dense_columns = tuple(dense(f"{name}_dense{i}", sizes) for i in range(draw(st.integers(0, 2))))
        time = None
        if timestamp and draw(st.booleans()):
            time = f"{name}_time"
            put(time, [many(ids, n) for n in sizes], wrap(integer()))
        groups.append(SequenceGroup(name, id_columns, dense_columns, time, draw(st.integers(1, 4))))
    domain = weight = None
    if draw(st.booleans()):
        weight = "weight"
        put("weight", many(st.floats(0, 5, width=32)), draw(st.sampled_from(_FLOAT_TYPES)))
    if draw(st.booleans()):
        strings = draw(st.booleans())
        values = ("x", "y") if strings else (7, -3)
        domain = Domain("domain", values)
        put("domain", many(st.sampled_from(values)), pa.string() if strings else draw(st.sampled_from(_INT_TYPES[:4])))
        if strings and draw(st.booleans()):
            columns["domain"] = columns["domain"].dictionary_encode()
    numbers = tuple(dense(f"dense{i}") for i in range(draw(st.integers(0, 2))))
    schema = Schema("drawn", (Label("label"),), numbers, tuple(sparse), tuple(groups), timestamp, weight, domain)
    return schema, pa.table(columns)


def slow_rows(table: pa.Table, schema: Schema) -> list[tuple]:
    """The definition: what each row becomes, by plain Python."""

    def number(column, value):
        if value is None or math.isnan(value):
            value = column.fill
        value = math.copysign(math.log1p(abs(value)), value) if column.log1p else value
        return round((value - column.mean) / column.std, 3) + 0.0

    def row(r):
        sparse = {}
        for c in schema.sparse:
            value = r[c.name]
            sparse[c.name] = tuple(value) if isinstance(value, list) else () if value is None else (value,)
        events = []
        for g in schema.sequences:
            newest = {c.name: tuple((r[c.name] or [])[-g.max_length :]) for c in (*g.ids, *g.dense)}
            ids = tuple(newest[c.name] for c in g.ids)
            time = tuple(r[g.timestamp][-g.max_length :]) if g.timestamp else (0,) * len(ids[0])
            dense = tuple(tuple(number(c, v) for v in newest[c.name]) for c in g.dense)
            events.append((ids, time, dense))
        return (
            tuple(np.float32(r[c.name]).item() for c in schema.labels),
            tuple(number(c, r[c.name]) for c in schema.dense),
            tuple(sorted(sparse.items())),
            tuple(events),
            r[schema.timestamp] if schema.timestamp else 0,
            np.float32(r[schema.weight]).item() if schema.weight else 1.0,
            schema.domain.values.index(r[schema.domain.column]) if schema.domain else 0,
        )

    return [row(r) for r in table.to_pylist()]


def rows_of(batch: Batch, schema: Schema) -> list[tuple]:
    """A batch taken apart into the rows of `slow_rows`."""

    def keyed(kjt):
        values, lengths = iter(kjt.values().tolist()), kjt.lengths().reshape(-1, batch.batch_size).tolist()
        return {
            k: [tuple(next(values) for _ in range(n)) for n in per] for k, per in zip(kjt.keys(), lengths, strict=True)
        }

    ids = {**keyed(batch.sparse), **keyed(batch.sequence_ids)}
    found = []
    for i in range(batch.batch_size):
        events = []
        for g in schema.sequences:
            event = batch.events[g.name]
            a, b = event.offsets[i : i + 2].tolist()
            dense = tuple(tuple(round(v, 3) + 0.0 for v in event.dense[a:b, k].tolist()) for k in range(len(g.dense)))
            time = tuple(event.timestamps[a:b].tolist())
            events.append((tuple(ids[c.name][i] for c in g.ids), time, dense))
        found.append(
            (
                tuple(batch.labels[i].tolist()),
                tuple(round(v, 3) + 0.0 for v in batch.dense[i].tolist()),
                tuple(sorted((c.name, ids[c.name][i]) for c in schema.sparse)),
                tuple(events),
                int(batch.timestamps[i]),
                float(batch.weights[i]),
                int(batch.domains[i]),
            )
        )
    return found
