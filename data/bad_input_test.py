"""Each fault that a data set can have: one error that names it, or a row that is dropped and counted."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faceter.data.check import check_types, extra_columns
from faceter.data.errors import DataError
from faceter.data.reader import ParquetReader
from faceter.data.schema import DenseColumn, Domain, Label, Schema, SparseColumn
from faceter.data.testing_tables import full_schema, full_table, write

_BAD = 13  # in row group 1 of file 0, or row 3 of that row group


def _set(table, column, value, kind=None, row=_BAD):
    values = table.column(column).to_pylist()
    values[row] = value
    place = table.column_names.index(column)
    return table.set_column(place, column, pa.array(values, kind or table.column(column).type))


# (column, bad value, type of the column if another is needed, message)
_FAULTS = {
    "null label": ("click", None, None, "null label"),
    "NaN label": ("buy", math.nan, None, "label is not finite: nan"),
    "label above 1": ("click", 2, None, r"label outside \[0, 1\]: 2.0"),
    "label below 0": ("buy", -0.25, None, r"label outside \[0, 1\]: -0.25"),
    "null number": ("price", None, None, "null number and no `fill`"),
    "NaN number": ("price", math.nan, None, "NaN and no `fill`"),
    "infinite number": ("price", -math.inf, None, "number is not finite: -inf"),
    "infinite number in spite of fill": ("age", math.inf, pa.float64(), "number is not finite: inf"),
    "negative id": ("user", -1, None, r"id outside \[0, 100\): -1"),
    "too large id": ("item", 100, None, r"id outside \[0, 100\): 100"),
    "too large id in a small type": ("item", 120, pa.int8(), r"id outside \[0, 100\): 120"),
    "negative id in a small type": ("item", -128, pa.int8(), r"id outside \[0, 100\): -128"),
    "huge unsigned id": ("item", 2**64 - 1, pa.uint64(), r"id outside \[0, 100\): 18446744073709551615"),
    "bad id in a list": ("tags", [1, 2, 7000], None, r"id outside \[0, 100\): 7000"),
    "null in a list of ids": ("tags", [1, None], None, "null id inside a list"),
    "bad id in a sequence": ("view_item", [3, -9], None, r"id outside \[0, 100\): -9"),
    "bad id that is cut off": ("view_item", [-9, 1, 2, 3, 4], None, r"id outside \[0, 100\): -9"),
    "null id in a sequence": ("view_item", [None], None, "null id inside a list"),
    "shorter list in a group": ("click_cat", [], None, "lists of group 'click' disagree in length"),
    "longer list in a group": ("click_time", [1] * 20, None, r"disagree in length \(click_item has another\): 20"),
    "null list in a group": ("click_dwell", None, None, "lists of group 'click' disagree in length"),
    "NaN in a sequence": ("click_price", "NaN", None, "NaN and no `fill`"),
    "null in a sequence": ("click_price", "null", None, "null number and no `fill`"),
    "null event time": ("click_time", "null", None, "null timestamp"),
    "null row time": ("time", None, None, "null timestamp"),
    "time beyond int64": ("time", 2**63, pa.uint64(), "timestamp does not fit int64: 9223372036854775808"),
    "null weight": ("weight", None, None, "null weight"),
    "NaN weight": ("weight", math.nan, None, "weight is not finite"),
    "negative weight": ("weight", -1.0, None, "weight is negative: -1.0"),
    "unknown domain": ("surface", "stories", None, r"unknown domain \(known: feed, reels\): stories"),
    "null domain": ("surface", None, None, "unknown domain .*: None"),
    "unknown domain as a string": ("surface", "stories", pa.string(), "unknown domain .*: stories"),
}


def _faulty(name):
    column, value, kind, message = _FAULTS[name]
    table = full_table(40, seed=1)
    # The list columns of a group need an event to be wrong about.
    for other in ("click_item", "click_cat", "click_dwell", "click_price", "click_time"):
        table = _set(table, other, [1, 2])
    if isinstance(value, str) and column.startswith("click_"):
        value = [1, math.nan if value == "NaN" else None]
    return _set(table, column, value, kind), column, message


# The checks are the same in a worker: two show how an error comes out of it.
@pytest.mark.parametrize("name, workers", [(name, 0) for name in _FAULTS] + [("null label", 1), ("unknown domain", 1)])
def test_bad_value_is_named(tmp_path, name, workers):
    table, column, message = _faulty(name)
    write(tmp_path, table, row_group_size=10)
    with (
        pytest.raises(DataError, match=message) as caught,
        ParquetReader(tmp_path, full_schema(), 8, workers=workers) as reader,
    ):
        list(reader.epoch())
    error = caught.value
    assert (error.file, error.row_group, error.row, error.column) == (tmp_path / "part-00000.parquet", 1, _BAD, column)
    assert str(error).endswith('Repair the row, or drop such rows with on_bad_row="skip"')
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", _FAULTS)
def test_bad_row_is_skipped_and_counted(tmp_path, name):
    table, column, _ = _faulty(name)
    write(tmp_path, table, row_group_size=10)
    with ParquetReader(tmp_path, full_schema(), 8, on_bad_row="skip") as reader:
        batches = list(reader.epoch())
    # `time` is the row's number, but for the row whose `time` is bad.
    assert [t for b in batches for t in b.timestamps.tolist()] == [i for i in range(40) if i != _BAD]
    ((file, bad_column, _),) = reader.bad_rows
    assert (file, bad_column) == (str(tmp_path / "part-00000.parquet"), column)
    assert reader.bad_rows.total() == 1
    # The batches end where they would have.
    assert [b.batch_size for b in batches] == [8, 7, 8, 8, 8]
    clean = write(tmp_path / "clean", table.filter([i != _BAD for i in range(40)]), row_group_size=100)
    (expected,) = ParquetReader(clean, full_schema(), 40).epoch()
    found = batches[1]
    assert found.labels.equal(expected.labels[8:15])
    assert found.dense.equal(expected.dense[8:15])
    assert found.events["click"].offsets.diff().equal(expected.events["click"].offsets.diff()[8:15])


@pytest.mark.parametrize("workers", [0, 2])
def test_count_of_bad_rows_is_resumed(tmp_path, workers):
    table = full_table(60)
    for row in (3, 17, 30, 59):
        table = _set(table, "click", None, row=row)
    table = _set(_set(table, "weight", -1.0, row=17), "weight", -1.0, row=31)
    write(tmp_path, table, files=2, row_group_size=10)
    options = {"shuffle_rows": 15, "on_bad_row": "skip", "workers": workers}
    with ParquetReader(tmp_path, full_schema(), 8, **options) as reader:
        passing = reader.epoch()
        for _ in range(4):
            next(passing)
        state = reader.state_dict()
        rest = [b.timestamps for b in passing]
    # Row 17 has two faults and is one row.
    assert sorted((p, n) for (_, _, p), n in reader.bad_rows.items()) == [
        ("null label", 2),
        ("null label", 2),
        ("weight is negative", 1),
    ]
    with ParquetReader(tmp_path, full_schema(), 8, **options) as resumed:
        resumed.load_state_dict(state)
        again = [b.timestamps for b in resumed.epoch()]
    assert all(a.equal(b) for a, b in zip(rest, again, strict=True))
    assert resumed.bad_rows == reader.bad_rows


def test_batch_of_bad_rows_only(tmp_path):
    table = full_table(12)
    for row in (4, 5, 6, 7):
        table = _set(table, "click", None, row=row)
    write(tmp_path, table)
    reader = ParquetReader(tmp_path, full_schema(), 4, on_bad_row="skip")
    assert [b.timestamps.tolist() for b in reader.epoch()] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert reader.position == (1, 0)
    ranks = ParquetReader(tmp_path, full_schema(), 2, on_bad_row="skip", world_size=2, rank=0)
    with pytest.raises(DataError, match=r"every row of a batch is bad: null label .*same number of batches"):
        list(ranks.epoch())


def test_what_is_legal(tmp_path):
    table = full_table(40)
    for name in ("click_item", "click_cat", "click_dwell", "click_price", "click_time"):
        table = _set(table, name, [] if name == "click_cat" else None)  # empty and null alike
    table = _set(_set(table, "tags", None), "user", None)
    table = _set(_set(table, "age", None), "click_dwell", [None, math.nan], row=5)
    for name in ("click_item", "click_cat", "click_price", "click_time"):
        table = _set(table, name, [0, 99], row=5)
    write(tmp_path, table, row_group_size=10)
    (batch,) = ParquetReader(tmp_path, full_schema(), 40).epoch()
    assert batch.events["click"].offsets.diff()[[5, _BAD]].tolist() == [2, 0]
    assert batch.sparse["tags"].lengths()[_BAD] == 0
    assert batch.sparse["user"].lengths()[[5, _BAD]].tolist() == [1, 0]
    assert batch.dense[_BAD, 1] == 1.0
    assert batch.events["click"].dense[batch.events["click"].offsets[5] :][:2, 0].tolist() == [0.0, 0.0]


def test_every_history_empty(tmp_path):
    table = full_table(6)
    for name in ("click_item", "click_cat", "click_dwell", "click_price", "click_time", "view_item"):
        for row in range(6):
            table = _set(table, name, [], row=row)
    write(tmp_path, table)
    (batch,) = ParquetReader(tmp_path, full_schema(), 8).epoch()
    assert batch.events["click"].offsets.tolist() == [0] * 7
    assert batch.events["click"].max_length == 1


def test_what_lies_under_a_null_list_is_not_read(tmp_path):
    # Arrow allows values there; a Parquet file does not keep them, so that this goes without one.
    from faceter.data.check import RowChecks
    from faceter.data.decode import decode

    offsets, hidden = pa.array([0, 2, 4, 5], pa.int32()), pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(offsets, pa.array([1, 2, -7, 500, 3]), mask=hidden)
    plain = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    from faceter.data.schema import SequenceGroup

    group = SequenceGroup("g", (SparseColumn("a", 9), SparseColumn("b", 9)))
    schema = Schema("s", (Label("y"),), sequences=(group,))
    table = pa.table({"y": [0, 1, 0], "a": lists, "b": plain})
    rows = decode(table, schema, RowChecks(3, file="x", row_group=0, first_row=0, skip=False))
    jagged = rows.events["g"]
    assert jagged.lengths.tolist() == [2, 0, 1]
    assert [v.tolist() for v in jagged.values] == [[1, 2, 3], [1, 2, 3]]


_TYPES = {
    "click": (["yes"] * 4, "must be a number .*, is string"),
    "price": ([[1.0]] * 4, "must be a number .*, is list"),
    "user": ([1.5] * 4, "must be an integer or a list of integers, is double"),
    "tags": ([["a"]] * 4, "must be an integer or a list of integers, is list"),
    "click_item": ([1] * 4, "must be a list of integers, is int64"),
    "click_cat": ([[1.0]] * 4, "must be a list of integers, is list<.*double>"),
    "click_dwell": ([["x"]] * 4, "must be a list of numbers, is list"),
    "click_time": ([1] * 4, "must be a list of integers, is int64"),
    "time": ([1.5] * 4, "must be an integer, is double"),
    "weight": (["x"] * 4, "must be a number .*, is string"),
    "surface": ([1] * 4, "must be a string, is int64"),
}


@pytest.mark.parametrize("column", _TYPES)
def test_wrong_type_is_found_before_anything_is_read(tmp_path, column):
    values, message = _TYPES[column]
    table = full_table(4)
    table = table.set_column(table.column_names.index(column), column, pa.array(values))
    write(tmp_path, table)
    with pytest.raises(DataError, match=message) as caught:
        ParquetReader(tmp_path, full_schema(), 8)
    assert (caught.value.file, caught.value.column) == (tmp_path / "part-00000.parquet", column)


@pytest.mark.parametrize("column", full_schema().columns)
def test_missing_column(tmp_path, column):
    write(tmp_path, full_table(4).drop_columns([column]))
    with pytest.raises(DataError, match=r"the file lacks a column of the schema.*It has: ") as caught:
        ParquetReader(tmp_path, full_schema(), 8)
    assert (caught.value.file, caught.value.column) == (tmp_path / "part-00000.parquet", column)


def test_extra_columns_are_legal_and_named_on_request(tmp_path):
    table = full_table(4)
    write(tmp_path, table)
    ParquetReader(tmp_path, full_schema(), 8)
    assert extra_columns(table.schema, full_schema()) == ["unused"]


def test_column_that_is_there_twice():
    columns = pa.schema([("click", pa.int8()), ("click", pa.int8())])
    with pytest.raises(DataError, match="two columns of this name"):
        check_types(columns, Schema("s", (Label("click"),)), "x.parquet")


def test_integer_domains(tmp_path):
    schema = Schema("s", (Label("y"),), domain=Domain("d", (7, -3)))
    pq.write_table(pa.table({"y": [0, 1, 1], "d": pa.array([-3, 7, -3], pa.int8())}), tmp_path / "a.parquet")
    (batch,) = ParquetReader(tmp_path, schema, 8).epoch()
    assert batch.domains.tolist() == [1, 0, 1]
    pq.write_table(pa.table({"y": [0, 1, 1], "d": pa.array([-3, 7, 8], pa.int8())}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"unknown domain \(known: 7, -3\): 8"):
        list(ParquetReader(tmp_path, schema, 8).epoch())


def test_large_finite_numbers_are_no_fault(tmp_path):
    """Their float32 sum overflows, which the quick check must not take for an infinity among them."""
    schema = Schema("s", (Label("y"),), dense=(DenseColumn("d", log1p=True),))
    values = pa.array([3e38, 3e38, -3e38, 1.0], pa.float32())
    pq.write_table(pa.table({"y": [0, 1, 1, 0], "d": values}), tmp_path / "a.parquet")
    (batch,) = ParquetReader(tmp_path, schema, 8).epoch()
    assert batch.dense[:, 0].isfinite().all()


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_row_group_is_named(tmp_path, workers):
    write(tmp_path, full_table(200), row_group_size=100)
    file = tmp_path / "part-00000.parquet"
    column = pq.read_metadata(file).row_group(1).column(0)
    content = bytearray(file.read_bytes())
    content[column.data_page_offset : column.data_page_offset + 12] = b"\xff" * 12
    file.write_bytes(content)
    with (
        pytest.raises(DataError, match="cannot read the row group") as caught,
        ParquetReader(tmp_path, full_schema(), 8, workers=workers) as reader,
    ):
        list(reader.epoch())
    assert (caught.value.file, caught.value.row_group) == (file, 1)


def test_file_that_is_gone_or_changed_under_the_reader(tmp_path):
    write(tmp_path, full_table(40), row_group_size=10)
    reader = ParquetReader(tmp_path, full_schema(), 8)
    write(tmp_path, full_table(20), row_group_size=5)
    with pytest.raises(DataError, match="changed while it was read"):
        list(reader.epoch())
    reader = ParquetReader(tmp_path, full_schema(), 8)
    (tmp_path / "part-00000.parquet").unlink()
    with pytest.raises(DataError, match="cannot read: No such file"):
        list(reader.epoch())
