"""RecBole's atomic files against a hand-made data set, and histories against a loop."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import recbole
from faceter.data.errors import DataError
from faceter.data.schema import Schema

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
USER = "user_id:token\tage:float\tcity:token\nu1\t30\tRome\nu2\t\t\n"
ITEM = "item_id:token\ttitle:token_seq\na\tRed Sun\nb\tSun\nd\t\n"


def write(folder, inter, user=USER, item=ITEM):
    folder.mkdir(exist_ok=True)
    for suffix, text in ((".inter", inter), (".user", user), (".item", item)):
        if text is not None:
            (folder / f"toy{suffix}").write_text(text)
    return folder


def rows_of(out):
    return [row for split in ("train", "valid", "test") for row in pq.read_table(out / split).to_pylist()]


def test_tokens_words_floats_and_joins(tmp_path):
    lines = ["u1\ta\t5\t3", "u2\tb\t1\t1", "u1\tc\t4\t2", "u3\ta\t2\t4"]
    source = write(tmp_path / "in", INTER + "".join(line + "\n" for line in lines))
    schema = recbole.convert(
        tmp_path / "out", source, positive_from=4, valid_fraction=0.25, test_fraction=0.25, max_history=7
    )
    assert schema == Schema.load(tmp_path / "out")
    assert schema.tables == {"user_id": 4, "item_id": 5, "city": 2, "title": 3}
    assert schema.dense[0].name == "age"
    # In order of time. u1, u2, u3 = 1, 2, 3; a, b, c, d = 1, 2, 3, 4; Red, Sun = 1, 2.
    common = {"past_item_id": [], "past_rating": [], "past_timestamp": []}
    past = {"past_item_id": [3], "past_rating": [4.0], "past_timestamp": [2]}
    assert rows_of(tmp_path / "out") == [
        {"rating": 0, "user_id": 2, "item_id": 2, "age": None, "city": 0, "title": [2], **common, "timestamp": 1},
        {"rating": 1, "user_id": 1, "item_id": 3, "age": 30.0, "city": 1, "title": [], **common, "timestamp": 2},
        {"rating": 1, "user_id": 1, "item_id": 1, "age": 30.0, "city": 1, "title": [1, 2], **past, "timestamp": 3},
        {"rating": 0, "user_id": 3, "item_id": 1, "age": None, "city": 0, "title": [1, 2], **common, "timestamp": 4},
    ]


@pytest.mark.parametrize("block_rows", [7, 1000])
def test_histories_are_the_strict_past_without_the_own_held_out_part(tmp_path, block_rows):
    rng = np.random.default_rng(0)
    log = [(rng.integers(0, 5), n, rng.integers(0, 2), rng.integers(0, 60)) for n in range(200)]
    text = "".join(f"u{u}\ti{i}\t{y}\t{t}\n" for u, i, y, t in log)
    recbole.convert(
        tmp_path / "out", write(tmp_path / "in", INTER + text, None, None), max_history=20, block_rows=block_rows
    )
    part_of = {}
    for split in ("train", "valid", "test"):
        for row in pq.read_table(tmp_path / "out" / split).to_pylist():
            part_of[row["item_id"] - 1] = split
    assert list(part_of.values()).count("test") == list(part_of.values()).count("valid") == 20
    for row in rows_of(tmp_path / "out"):
        u, i, y, t = log[row["item_id"] - 1]
        known = [e for e in log if e[0] == u and e[3] < t and (part_of[i] == "train" or part_of[e[1]] != part_of[i])]
        known = sorted(known, key=lambda e: e[3])[-20:]
        assert row["rating"] == y
        assert row["past_item_id"] == [e[1] + 1 for e in known]
        assert row["past_rating"] == [e[2] for e in known]
        assert row["past_timestamp"] == [e[3] for e in known]


def test_without_timestamps_there_is_no_history(tmp_path):
    source = write(tmp_path / "in", "user_id:token\titem_id:token\tlabel:float\nu\ta\t1\nu\tb\t0\n", None, None)
    schema = recbole.convert(tmp_path / "out", source, label="label", test_fraction=0, valid_fraction=0)
    assert schema.sequences == ()
    assert [r["item_id"] for r in pq.read_table(tmp_path / "out" / "train").to_pylist()] == [1, 2]


GOOD = INTER + "u1\ta\t1\t3\n"


@pytest.mark.parametrize(
    "inter, user, message",
    [
        (INTER + "u1\ta\t1\t3\nu1\ta\n", USER, r"line 3 has 2 fields, expected 4 \[file .*toy.inter\]"),
        (INTER + "u1\ta\t1\t3\nu1\ta\tx\t3\n", USER, r"line 3: .*'x' \[file .*toy.inter, column rating:float\]"),
        (INTER + "u1\ta\t5\t3\n", USER, r"line 2: a label must be in \[0, 1\].*positive_from.*column rating\]"),
        (INTER + "u1\ta\t\t3\n", USER, r"line 2: the value is missing \[file .*column rating\]"),
        (INTER + "u1\ta\t1\t\n", USER, r"line 2: the value is missing \[file .*column timestamp\]"),
        (INTER, USER, "header and no rows"),
        ("", USER, r"the file is empty \[file .*toy.inter\]"),
        ("user_id:token\titem_id:token\nu1\ta\n", USER, r"no column rating:float.*It has user_id, item_id"),
        (INTER.replace("rating:float", "rating"), USER, "'rating' is none of name:token"),
        (GOOD.replace("timestamp:float", "timestamp:float_seq"), USER, "'timestamp:float_seq' is none of"),
        (GOOD, "age:float\n3\n", r"the side file lacks its key \[file .*toy.user, column user_id\]"),
        (GOOD, "user_id:token\titem_id:token\nu1\ta\n", r"two of the files have this column \[column item_id\]"),
    ],
)
def test_bad_files_leave_nothing(tmp_path, inter, user, message):
    source = write(tmp_path / "in", inter, user)
    with pytest.raises(DataError, match=message):
        recbole.convert(tmp_path / "out", source)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_one_inter_file_is_needed(tmp_path):
    with pytest.raises(DataError, match=r"0 files \*.inter"):
        recbole.convert(tmp_path / "out", tmp_path)
    with pytest.raises(DataError, match=r"0 files \*.inter"):
        recbole.convert(tmp_path / "out", tmp_path / "none")


def test_left_out_columns_need_no_type(tmp_path):
    source = write(tmp_path / "in", GOOD.replace("timestamp:float", "when"))
    schema = recbole.convert(tmp_path / "out", source, leave_out=("when", "title"), valid_fraction=0, test_fraction=0)
    assert "title" not in schema.columns
    assert "when" not in schema.columns
