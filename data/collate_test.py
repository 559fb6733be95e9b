import itertools

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faceter.data.check import RowChecks, check_types
from faceter.data.collate import collate, merge, shape_of
from faceter.data.decode import concatenate, decode
from faceter.data.reader import to_batch
from faceter.data.testing_tables import full_schema, full_table, rows_of, schemas_and_tables, slow_rows

_SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def _decode(table, schema):
    checks = RowChecks(table.num_rows, file="x.parquet", row_group=0, first_row=0, skip=False)
    return decode(table, schema, checks)


def _chunk(rows, index, schema):
    shape = shape_of(rows, index, schema)
    # Filled with rubbish: every byte that a batch shows must have been written.
    chunk = shape.carve(schema, np.full(shape.nbytes(schema), 0xAB, np.uint8))
    collate(rows, index, schema, chunk)
    return chunk


@_SLOW
@given(drawn=schemas_and_tables(), data=st.data())
def test_any_rows_in_any_order_equal_the_slow_way(drawn, data):
    schema, table = drawn
    check_types(table.schema, schema, "x.parquet")
    # Several row groups, cut out of the middle of arrays.
    cuts = sorted(data.draw(st.lists(st.integers(0, table.num_rows), max_size=2)))
    bounds = [0, *cuts, table.num_rows]
    parts = [table.slice(a, b - a) for a, b in itertools.pairwise(bounds) if b > a]
    rows = concatenate([_decode(part, schema) for part in parts])
    expected = slow_rows(table, schema)
    order = np.array(data.draw(st.permutations(range(table.num_rows))))
    shuffled = to_batch(_chunk(rows, order, schema), schema)
    assert rows_of(shuffled, schema) == [expected[i] for i in order]
    a, b = data.draw(st.integers(0, table.num_rows - 1)), table.num_rows
    in_order = to_batch(_chunk(rows, slice(a, b), schema), schema)
    assert rows_of(in_order, schema) == expected[a:b]
    n = data.draw(st.integers(1, table.num_rows))
    halves = [_chunk(rows, order[part], schema) for part in (slice(0, n), slice(n, None)) if len(order[part])]
    assert rows_of(to_batch(merge(halves, schema), schema), schema) == [expected[i] for i in order]


def test_batch_has_the_contract_shapes_and_dtypes():
    schema, table = full_schema(max_length=4), full_table(10)
    batch = to_batch(_chunk(_decode(table, schema), np.arange(10), schema), schema)
    assert batch.batch_size == 10
    assert (batch.labels.shape, batch.labels.dtype) == ((10, 2), torch.float32)
    assert (batch.dense.shape, batch.dense.dtype) == ((10, 2), torch.float32)
    assert (batch.weights.dtype, batch.timestamps.dtype, batch.domains.dtype) == (
        torch.float32,
        torch.int64,
        torch.int64,
    )
    assert batch.sparse.keys() == ["user", "tags"]
    assert batch.sequence_ids.keys() == ["click_item", "click_cat", "view_item", "item"]
    click = batch.events["click"]
    total = int(click.offsets[-1])
    assert (click.offsets.dtype, click.timestamps.dtype) == (torch.int64, torch.int64)
    assert (click.dense.shape, click.dense.dtype) == ((total, 2), torch.float32)
    assert click.max_length == int(click.offsets.diff().max()) <= 4
    assert batch.events["view"].dense.shape == (int(batch.events["view"].offsets[-1]), 0)
    assert not batch.events["view"].timestamps.any()


def test_keyed_tensors_know_what_torchrec_would_compute():
    schema, table = full_schema(), full_table(10)
    batch = to_batch(_chunk(_decode(table, schema), np.arange(10), schema), schema)
    for kjt in (batch.sparse, batch.sequence_ids):
        per_key = kjt.lengths().reshape(len(kjt.keys()), -1).sum(1)
        assert kjt.length_per_key() == per_key.tolist()
        assert kjt.offset_per_key() == [0, *per_key.cumsum(0).tolist()]
        assert kjt.stride() == 10


def test_wide_integers_are_normalised_before_they_are_rounded():
    import pyarrow as pa

    from faceter.data.schema import DenseColumn, Label, Schema

    schema = Schema("s", (Label("y"),), dense=(DenseColumn("d", mean=1_600_000_000.0),))
    rows = _decode(pa.table({"y": [0.0, 1.0], "d": [1_600_000_001, 1_600_000_003]}), schema)
    assert rows.dense[:, 0].tolist() == [1.0, 3.0]
