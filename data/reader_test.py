import pickle
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faceter.data.errors import DataError
from faceter.data.reader import ParquetReader
from faceter.data.schema import Schema
from faceter.data.testing_tables import full_schema, full_table, rows_of, schemas_and_tables, slow_rows, write

_SLOW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def _flat(batch):
    tensors = [batch.dense, batch.labels, batch.weights, batch.timestamps, batch.domains]
    for kjt in (batch.sparse, batch.sequence_ids):
        tensors += [kjt.values(), kjt.lengths()]
    for event in batch.events.values():
        tensors += [event.offsets, event.timestamps, event.dense, torch.tensor(event.max_length)]
    return tensors


def _same(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others)
    for a, b in zip(batches, others, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(_flat(a), _flat(b), strict=True))


def _times(batches):
    """`time` is the row's number in `full_table`."""
    return [t for batch in batches for t in batch.timestamps.tolist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"), full_table(100), files=3, row_group_size=8)


@_SLOW
@given(
    drawn=schemas_and_tables(),
    files=st.integers(1, 3),
    row_group_size=st.integers(1, 9),
    batch_size=st.integers(1, 8),
    shuffle_rows=st.sampled_from([0, 5, 100]),
    world_size=st.integers(1, 4),
)
def test_every_row_once_over_the_ranks(
    tmp_path_factory, drawn, files, row_group_size, batch_size, shuffle_rows, world_size
):
    schema, table = drawn
    path = write(tmp_path_factory.mktemp("drawn"), table, files, row_group_size)
    rows, steps = [], set()
    for rank in range(world_size):
        options = {"shuffle_rows": shuffle_rows, "rank": rank, "world_size": world_size}
        if table.num_rows < world_size:
            with pytest.raises(DataError, match="too few"):
                ParquetReader(path, schema, batch_size, **options)
            return
        reader = ParquetReader(path, schema, batch_size, **options)
        batches = list(reader.epoch())
        assert len(batches) == reader.steps_per_epoch
        steps.add(len(batches))
        rows += [row for batch in batches for row in rows_of(batch, schema)]
    assert len(steps) == 1
    expected = slow_rows(table, schema)
    if world_size == 1 and not shuffle_rows:
        assert rows == expected
    left_out = Counter(expected)
    left_out.subtract(rows)
    assert min(left_out.values()) >= 0
    assert left_out.total() == (table.num_rows % world_size if batch_size == 1 else 0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_stay_in_step(folder, world_size, drop_last):
    counts, seen = set(), []
    for rank in range(world_size):
        reader = ParquetReader(
            folder, full_schema(), 8, shuffle_rows=20, rank=rank, world_size=world_size, drop_last=drop_last
        )
        assert reader.num_rows == 100
        batches = list(reader.epoch())
        counts.add(len(batches))
        seen += _times(batches)
        if drop_last:
            assert {b.batch_size for b in batches} == {8}
    assert len(counts) == 1
    assert len(set(seen)) == len(seen)
    assert len(seen) == (100 // world_size // 8 * 8 * world_size if drop_last else 100)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle_rows": 30},
        {"shuffle_rows": 30, "balance": True, "sub_batch": 3, "rank": 1, "world_size": 2, "drop_last": True},
    ],
)
def test_resume_at_every_batch_equals_the_uninterrupted_stream(folder, workers, options):
    with ParquetReader(folder, full_schema(), 7, **options) as reader:
        states, batches = [reader.state_dict()], []
        for _ in range(2):
            for batch in reader.epoch():
                batches.append(batch)
                states.append(pickle.loads(pickle.dumps(reader.state_dict())))
    assert len(batches) == 2 * reader.steps_per_epoch
    # Worker processes take time to start: every third place is enough for them.
    for at in range(0, len(states), 3 if workers else 1):
        with ParquetReader(folder, full_schema(), 7, workers=workers, **options) as resumed:
            resumed.load_state_dict(states[at])
            rest = list(resumed.epoch())
            if at + len(rest) < len(batches):
                rest += resumed.epoch()
            _same(batches[at:], rest)
            assert resumed.state_dict() == reader.state_dict()


def test_state_after_the_last_batch_has_none_left(folder):
    reader = ParquetReader(folder, full_schema(), 50)
    passing = reader.epoch()
    next(passing), next(passing)
    state = reader.state_dict()
    resumed = ParquetReader(folder, full_schema(), 50)
    resumed.load_state_dict(state)
    assert list(resumed.epoch()) == []
    assert resumed.position == (1, 0)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_number_of_workers_changes_nothing(folder, workers):
    options = {"shuffle_rows": 40, "seed": 5}
    with ParquetReader(folder, full_schema(), 9, workers=workers, **options) as reader:
        _same(ParquetReader(folder, full_schema(), 9, **options).epoch(), reader.epoch())


def test_workers_leave_the_global_generator_alone(folder):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with ParquetReader(folder, full_schema(), 9, workers=1) as reader:
        list(reader.epoch())
    assert torch.equal(torch.get_rng_state(), before)


def test_resume_reads_no_row_group_that_is_done(folder, monkeypatch):
    reader = ParquetReader(folder, full_schema(), 8)
    passing = reader.epoch()
    for _ in range(11):
        next(passing)
    resumed = ParquetReader(folder, full_schema(), 8)
    resumed.load_state_dict(reader.state_dict())
    read = []
    original = resumed._blocks._read
    monkeypatch.setattr(resumed._blocks, "_read", lambda segment: read.append(segment) or original(segment))
    list(resumed.epoch())
    # 12 rows are left; a block is 4 batches of 8 rows or somewhat more.
    assert sum(s.rows for s in read) <= 12 + 4 * 8 + 8


def test_shuffle_is_a_permutation_that_differs_by_epoch_and_seed(folder):
    reader = ParquetReader(folder, full_schema(), 8, shuffle_rows=30)
    orders = [_times(reader.epoch()), _times(reader.epoch())]
    orders.append(_times(ParquetReader(folder, full_schema(), 8, shuffle_rows=30, seed=1).epoch()))
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    # Rows move far: a neighbour in the file is seldom a neighbour in the stream.
    assert sum(abs(a - b) == 1 for a, b in zip(orders[0][:-1], orders[0][1:], strict=True)) < 20
    assert _times(ParquetReader(folder, full_schema(), 8).epoch()) == list(range(100))


def test_pass_that_is_left_early_goes_on(folder):
    reader = ParquetReader(folder, full_schema(), 8)
    first = reader.epoch()
    seen = _times([next(first), next(first)])
    seen += _times(reader.epoch())
    assert seen == list(range(100))
    assert list(first) == []  # the new pass has ended it


def test_balance_levels_batches_and_ranks(tmp_path):
    write(tmp_path, full_table(1200), files=2, row_group_size=100)
    spread = {}
    for balance in (False, True):
        totals = []
        for rank in range(2):
            reader = ParquetReader(
                tmp_path,
                full_schema(),
                100,
                shuffle_rows=300,
                rank=rank,
                world_size=2,
                balance=balance,
                sub_batch=5,
            )
            batches = list(reader.epoch())
            totals.append([sum(int(e.offsets[-1]) for e in b.events.values()) for b in batches])
            if balance:
                assert len(set(_times(batches))) == 600
        totals = torch.tensor(totals, dtype=torch.float64)
        spread[balance] = (totals.std(1).mean().item(), (totals[0] - totals[1]).abs().mean().item())
    assert spread[True][0] < 0.5 * spread[False][0]
    assert spread[True][1] < 0.7 * spread[False][1]


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 9}, {"seed": 1}, {"shuffle_rows": 31}, {"world_size": 2}, {"drop_last": True}],
    ids=lambda change: next(iter(change)),
)
def test_state_of_other_arguments_is_refused(folder, change):
    options = {"batch_size": 8, "shuffle_rows": 30}
    state = ParquetReader(folder, full_schema(), **options).state_dict()
    reader = ParquetReader(folder, full_schema(), **{**options, **change})
    ((key, value),) = change.items()
    with pytest.raises(DataError, match=f"saved with another {key}: .*, now {value}. Resume with the same data"):
        reader.load_state_dict(state)


def test_state_of_other_data_or_schema_is_refused(folder, tmp_path):
    state = ParquetReader(folder, full_schema(), 8).state_dict()
    write(tmp_path, full_table(101))
    with pytest.raises(DataError, match="saved with another data"):
        ParquetReader(tmp_path, full_schema(), 8).load_state_dict(state)
    with pytest.raises(DataError, match="saved with another schema"):
        ParquetReader(folder, full_schema(max_length=2), 8).load_state_dict(state)
    with pytest.raises(DataError, match=r"not the state of a reader: .*seed.* missing"):
        ParquetReader(folder, full_schema(), 8).load_state_dict({"data": "x"})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, 2\)"),
        ({"on_bad_row": "ignore"}, "on_bad_row must be"),
        ({"balance": True, "sub_batch": 5}, "at least two sub-batches"),
    ],
)
def test_arguments_that_make_no_sense(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        ParquetReader(folder, full_schema(), **{"batch_size": 8, **arguments})


def test_only_the_columns_of_the_schema_are_read(folder, monkeypatch):
    import pyarrow.parquet as pq

    asked = []
    original = pq.ParquetFile.read_row_group

    def spy(self, *args, columns, **more):
        asked.append(columns)
        return original(self, *args, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    schema = full_schema()
    small = Schema("small", schema.labels[:1], sparse=schema.sparse[:1])
    list(ParquetReader(folder, small, 8).epoch())
    assert {tuple(columns) for columns in asked} == {("click", "user")}
