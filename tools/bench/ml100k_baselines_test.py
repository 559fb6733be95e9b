"""The parts of the comparison that need no RecBole: inputs, atomic files, metrics."""

import numpy as np
import pyarrow as pa
import pytest

from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn
from faceter.tools.bench import ml100k_baselines as bench


@pytest.fixture
def schema():
    return Schema(
        name="small",
        labels=(Label("like"),),
        dense=(DenseColumn("count", log1p=True, mean=1.0, std=2.0), DenseColumn("plain")),
        sparse=(
            SparseColumn("user_id", 4),
            SparseColumn("item_id", 5, table="item"),
            *(SparseColumn(name, 3) for name in (*bench.USER_COLUMNS, "year", "genres", "genre_set")),
        ),
        sequences=(
            SequenceGroup("rated", ids=(SparseColumn("rated_item", 5, table="item"), SparseColumn("rated_rating", 6))),
        ),
    )


@pytest.fixture
def table(schema):
    columns = {
        "like": pa.array([1, 0], pa.int8()),
        "count": pa.array([0.0, np.e - 1]),
        "plain": pa.array([2.0, -1.0]),
        "user_id": pa.array([1, 3]),
        "item_id": pa.array([4, 2]),
        **{name: pa.array([0, 2]) for name in (*bench.USER_COLUMNS, "year", "genre_set")},
        "genres": pa.array([[0, 2], []], pa.list_(pa.int64())),
        "rated_item": pa.array([[2, 4, 1], []], pa.list_(pa.int64())),
        "rated_rating": pa.array([[5, 3, 4], []], pa.list_(pa.int64())),
    }
    return pa.table({name: columns[name] for name in schema.columns})


def test_statistics_are_what_the_model_sees(schema, table):
    np.testing.assert_allclose(bench.statistics(table, schema.dense), [[-0.5, 2.0], [0.0, -1.0]], atol=1e-6)


def test_one_hot_of_ids_and_of_lists_also_of_a_slice(schema, table):
    expected = [[0, 1, 0, 0, 1, 0, 1], [0, 0, 0, 1, 0, 0, 0]]
    assert bench.one_hot(table, schema, ("user_id", "genres")).toarray().tolist() == expected
    assert bench.one_hot(table.slice(1), schema, ("user_id", "genres")).toarray().tolist() == expected[1:]


def test_atomic_files_hold_the_split_and_liked_films_only(schema, table, tmp_path):
    bench.write_atomic(tmp_path, {"train": table, "valid": table.slice(1), "test": table.slice(0, 1)}, schema)
    lines = (tmp_path / "ml100k.train.inter").read_text().splitlines()
    assert lines[0].split("\t") == [
        "user_id:token", "item_id:token", "label:float", "item_id_list:token_seq", "count:float", "plain:float"
    ]  # fmt: skip
    assert [line.split("\t")[:4] for line in lines[1:]] == [["1", "4", "1", "2 1"], ["3", "2", "0", ""]]
    assert len((tmp_path / "ml100k.valid.inter").read_text().splitlines()) == 2
    items = (tmp_path / "ml100k.item").read_text().splitlines()
    assert items == ["item_id:token\tyear:token\tgenres:token_seq\tgenre_set:token", "4\t0\t0 2\t0", "2\t2\t\t2"]


def test_normalised_entropy_of_the_base_rate_is_one_and_of_better_ones_less():
    labels = np.array([1, 0, 0, 0])
    assert bench.normalised_entropy(labels, np.full(4, 0.25)) == pytest.approx(1.0)
    assert bench.normalised_entropy(labels, np.array([0.9, 0.1, 0.1, 0.1])) < 0.5
