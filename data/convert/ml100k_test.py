"""MovieLens-100K: sizes, no leakage, every feature against a slow recomputation, bad input."""

import csv
import math
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import ml100k
from faceter.data.errors import DataError
from faceter.data.schema import Schema

PARTS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def ratings():
    return ml100k.read(ml100k.find_source())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("ml100k") / "out"
    assert ml100k.convert(out) == Schema.load(out) == ml100k.schema()
    return out


@pytest.fixture(scope="module")
def tables(folder):
    return {part: pq.read_table(folder / part) for part in PARTS}


def read_raw(suffix):
    with (ml100k.find_source() / f"ml-100k{suffix}").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_sizes_and_label_rate(tables):
    assert {part: t.num_rows for part, t in tables.items()} == {"train": 81_140, "valid": 9_430, "test": 9_430}
    liked = sum(t["like"].to_numpy().sum() for t in tables.values())
    assert liked == sum(float(row["rating:float"]) >= 4 for row in read_raw(".inter")) == 55_375


def test_each_user_has_10_and_10_held_out_rows_that_are_his_last(tables):
    for part in ("valid", "test"):
        assert (np.bincount(tables[part]["user_id"].to_numpy())[1:] == 10).all()
    for user in (1, 405, 943):
        times = [
            t["timestamp"].to_numpy()[t["user_id"].to_numpy() == user] for t in (tables[part] for part in PARTS)
        ]
        assert times[0].max() <= times[1].min() <= times[1].max() <= times[2].min()


def test_training_rows_keep_the_order_of_the_file(tables):
    raw = [(int(r["user_id:token"]), int(r["item_id:token"])) for r in read_raw(".inter")]
    place = {pair: n for n, pair in enumerate(raw)}
    t = tables["train"]
    places = [place[pair] for pair in zip(t["user_id"].to_pylist(), t["item_id"].to_pylist(), strict=True)]
    assert places == sorted(places)


def test_the_schema_normalises_the_training_part(tables):
    for column in ml100k.schema().dense:
        x = tables["train"][column.name].to_numpy().astype(np.float64)
        x = np.sign(x) * np.log1p(np.abs(x)) if column.log1p else x
        assert x.mean() == pytest.approx(column.mean, abs=0.002 * column.std), column.name
        assert x.std() == pytest.approx(column.std, rel=0.002), column.name
