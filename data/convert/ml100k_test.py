"""MovieLens-100K: sizes, no leakage, every column against a slow recomputation from the raw files, bad input."""

import csv
import math
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import ml100k, ml100k_features, ml100k_ratings
from faceter.data.errors import DataError
from faceter.data.schema import Schema

PARTS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def ratings():
    return ml100k_ratings.read(ml100k_ratings.find_source())


@pytest.fixture(scope="module")
def whole(ratings):
    return ml100k.table(ratings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("ml100k") / "out"
    assert ml100k.convert(out) == Schema.load(out) == ml100k.schema()
    return out


@pytest.fixture(scope="module")
def tables(folder):
    return {part: pq.read_table(folder / part) for part in PARTS}


def read_raw(suffix):
    with (ml100k_ratings.find_source() / f"ml-100k{suffix}").open(encoding="utf-8") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [{key.split(":")[0]: value for key, value in line.items()} for line in lines]


def test_sizes_and_label_rates(tables):
    assert {part: t.num_rows for part, t in tables.items()} == {"train": 81_140, "valid": 9_430, "test": 9_430}
    raw = [float(row["rating"]) for row in read_raw(".inter")]
    for label, lowest in (("like", 4), ("rating_3", 3), ("rating_5", 5)):
        assert sum(t[label].to_numpy().sum() for t in tables.values()) == sum(r >= lowest for r in raw)
    assert sum(r >= 4 for r in raw) == 55_375


def test_each_user_has_10_and_10_held_out_rows_that_are_the_last(tables):
    for part in ("valid", "test"):
        assert (np.bincount(tables[part]["user_id"].to_numpy())[1:] == 10).all()
    for user in (1, 405, 943):
        times = [t["timestamp"].to_numpy()[t["user_id"].to_numpy() == user] for t in tables.values()]
        assert times[0].max() <= times[1].min() <= times[1].max() <= times[2].min()


def test_training_rows_keep_the_order_of_the_file(tables):
    place = {(int(r["user_id"]), int(r["item_id"])): n for n, r in enumerate(read_raw(".inter"))}
    t = tables["train"]
    places = [place[pair] for pair in zip(t["user_id"].to_pylist(), t["item_id"].to_pylist(), strict=True)]
    assert places == sorted(places)


def test_the_schema_normalises_the_training_part(ratings):
    features = ml100k_features.features(ratings)
    for column in ml100k.schema().dense:
        x = features[column.name][ratings.split == 0]
        x = np.sign(x) * np.log1p(np.abs(x)) if column.log1p else x
        assert x.mean() == pytest.approx(column.mean, abs=0.001 * column.std), column.name
        assert x.std() == pytest.approx(column.std, rel=0.001), column.name


def test_what_the_model_sees_is_within_4_standard_deviations(tables):
    for column in ml100k.schema().dense:
        x = np.concatenate([t[column.name].to_numpy() for t in tables.values()]).astype(np.float64)
        x = np.sign(x) * np.log1p(np.abs(x)) if column.log1p else x
        assert np.abs((x - column.mean) / column.std).max() < 4.0001, column.name


class Slow:
    """Every column of a row by loops over the raw files, from the definitions."""

    def __init__(self):
        self.user = {r["user_id"]: r for r in read_raw(".user")}
        self.item = {r["item_id"]: r for r in read_raw(".item")}
        log = [
            (int(r["user_id"]), int(float(r["timestamp"])), n, int(r["item_id"]), int(float(r["rating"])))
            for n, r in enumerate(read_raw(".inter"))
        ]
        self.of_user, self.of_item, self.block = {}, {}, {}
        for row in sorted(log):
            self.of_user.setdefault(row[0], []).append(row)
        for rows in self.of_user.values():
            for n, row in enumerate(reversed(rows)):
                self.block[row] = n // 10
        for row in log:
            if self.block[row] >= 2:
                self.of_item.setdefault(row[3], []).append(row)
        self.means = {}

    def known(self, row):
        return [o for o in self.of_user[row[0]] if o[1] < row[1] and self.block[o] > self.block[row]]

    def others(self, row):
        return [o for o in self.of_item.get(row[3], ()) if o[1] < row[1]]

    def user_mean(self, row):
        if row not in self.means:
            past = [o[4] for o in self.known(row)]
            self.means[row] = (sum(past) + 5 * 3.5) / (len(past) + 5)
        return self.means[row]

    def item_mean(self, row):
        past = [o[4] for o in self.others(row)]
        return (sum(past) + 5 * 3.5) / (len(past) + 5)

    def year(self, item):
        text = self.item[str(item)]["release_year"]
        return int(text) if text.isdigit() else None

    def genres(self, item):
        return set(self.item[str(item)]["class"].split())

    def dense(self, row):
        user, time, _, item, _ = row
        past, others, mean = self.known(row), self.others(row), self.user_mean(row)
        n, m = len(past), len(others)
        like = (sum(o[4] >= 4 for o in past) + 5 * 0.55) / (n + 5)
        out = {"user_count": n, "user_mean": mean, "user_like_rate": like, "age": int(self.user[str(user)]["age"])}
        for k in (10, 30):
            last = [o[4] for o in past[-k:]]
            out[f"user_like_rate_{k}"] = (sum(r >= 4 for r in last) + 3 * like) / (len(last) + 3)
            out[f"user_mean_{k}"] = (sum(last) + 3 * mean) / (len(last) + 3)
        variance = sum((o[4] - sum(p[4] for p in past) / n) ** 2 for o in past)
        out["user_std"] = math.sqrt((variance + 5 * 1.1) / (n + 5))
        out["user_residual"] = sum(o[4] - self.item_mean(o) for o in past) / (n + 5)
        out["user_gap"] = time - past[-1][1] if past else 0
        out["user_span"] = time - past[0][1] if past else 0
        out["user_last_hour"] = sum(o[1] > time - 3600 for o in past)
        out["item_count"] = m
        out["item_like_rate"] = (sum(o[4] >= 4 for o in others) + 5 * 0.55) / (m + 5)
        out["item_mean"] = self.item_mean(row)
        out["item_residual"] = sum(o[4] - self.user_mean(o) for o in others) / (m + 5)
        out["release_year"] = self.year(item) or 1990
        out["days"] = (time - 874_724_710) / 86_400

        def affinity(name, likeness):
            weights = [likeness(o) for o in past]
            total = sum(w * (o[4] - mean) for w, o in zip(weights, past, strict=True))
            out[f"{name}_affinity"] = total / (sum(weights) + 2)
            return sum(weights)

        mine = self.genres(item)

        def genre_likeness(o):
            theirs = self.genres(o[3])
            return len(mine & theirs) / math.sqrt(max(len(mine), 1) * max(len(theirs), 1))

        out["genre_count"] = affinity("genre", genre_likeness)
        year = out["release_year"]
        out["year_count"] = affinity("year", lambda o: math.exp(-abs((self.year(o[3]) or 1990) - year) / 5))
        affinity("popularity", lambda o: math.exp(-abs(math.log1p(len(self.others(o))) - math.log1p(m)) / 0.5))
        affinity("quality", lambda o: math.exp(-abs(self.item_mean(o) - out["item_mean"]) / 0.15))
        return out


def test_every_column_against_a_slow_recomputation(ratings, tables):
    slow, schema = Slow(), ml100k.schema()
    sets = {}
    for number, part in enumerate(PARTS):
        rows = sorted((row for row in slow.block if min(slow.block[row], 2) == 2 - number), key=lambda row: row[2])
        # Among them rows without a history, and one of the longest.
        chosen = [
            *np.random.default_rng(number).integers(0, len(rows), 25),
            max(range(len(rows)), key=lambda k: slow.block[rows[k]]),
        ]
        for k in chosen:
            row, got = rows[k], tables[part].slice(int(k), 1).to_pylist()[0]
            user, time, _, item, rating = row
            expected = slow.dense(row)
            assert set(expected) == {c.name for c in schema.dense}
            for column in schema.dense:
                low, high = column.mean - 4 * column.std, column.mean + 4 * column.std
                seen = (
                    math.copysign(math.log1p(abs(got[column.name])), got[column.name])
                    if column.log1p
                    else got[column.name]
                )
                true = math.log1p(expected[column.name]) if column.log1p else expected[column.name]
                assert seen == pytest.approx(min(max(true, low), high), rel=1e-5, abs=1e-5), (row, column.name)
            past = slow.known(row)[-100:]
            assert got["rated_item"] == [o[3] for o in past]
            assert got["rated_rating"] == [o[4] for o in past]
            assert got["rated_time"] == [o[1] for o in past]
            assert got["rated_item_residual"] == pytest.approx([o[4] - slow.item_mean(o) for o in past], abs=1e-6)
            assert got["rated_user_residual"] == pytest.approx([o[4] - slow.user_mean(o) for o in past], abs=1e-6)
            assert got["rated_item_count"] == [len(slow.others(o)) for o in past]
            assert got["rated_genre_set"] == [
                sets.setdefault(frozenset(slow.genres(o[3])), v)
                for o, v in zip(past, got["rated_genre_set"], strict=True)
            ]
            years = [
                (slow.year(i), v)
                for i, v in zip([item, *(o[3] for o in past)], [got["year"], *got["rated_year"]], strict=True)
            ]
            assert all(v == (0 if y is None else 1 + sum(y >= b for b in ml100k.YEARS)) for y, v in years)
            side = slow.user[str(user)]
            assert (got["user_id"], got["item_id"], got["timestamp"]) == (user, item, time)
            assert (got["like"], got["rating_3"], got["rating_5"]) == (rating >= 4, rating >= 3, rating >= 5)
            assert ml100k_ratings.GENDERS[got["gender"] - 1] == side["gender"]
            assert ml100k_ratings.OCCUPATIONS[got["occupation"] - 1] == side["occupation"]
            assert {ml100k_ratings.GENRES[g - 1] for g in got["genres"]} == slow.genres(item)
            assert got["age_bucket"] == sum(int(side["age"]) >= b for b in ml100k.AGES)
            assert got["zip_area"] == 1 + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".index(side["zip_code"][0])
    assert len(set(sets.values())) == len(sets) > 50


def shuffled(ratings, rows, seed):
    """The data with the ratings of some rows permuted among them."""
    changed = ratings.rating.copy()
    changed[rows] = np.random.default_rng(seed).permutation(changed[rows])
    assert (changed != ratings.rating).any()
    return ratings.replace(rating=changed)


def split_second(ratings):
    """A second in which one user's ratings lie in two blocks of 10, most of them before the border: there only the
    timestamps part a row from what it must not see."""
    user, time = ratings.user, ratings.time
    block = (np.searchsorted(user, user, side="right") - 1 - np.arange(len(user))) // 10
    borders = np.flatnonzero((user[1:] == user[:-1]) & (time[1:] == time[:-1]) & (block[1:] != block[:-1]))
    before = [np.count_nonzero(time[max(n - 9, 0) : n + 1] == time[n]) for n in borders]
    assert max(before) > 4
    return time[borders[np.argmax(before)]]


@pytest.mark.parametrize("moment", ["early", "late", "split second"])
def test_shuffling_the_future_changes_no_past_or_present_row(ratings, whole, moment):
    now = (
        split_second(ratings)
        if moment == "split second"
        else np.quantile(ratings.time, {"early": 0.05, "late": 0.6}[moment])
    )
    changed = shuffled(ratings, ratings.time >= now, seed=1)
    before, after = whole, ml100k.table(changed)
    # A row at `now` may not see even the ratings of its own second.
    rows = np.flatnonzero(ratings.time <= now)
    assert len(rows) > 1000
    for name in set(before.column_names) - {"like", "rating_3", "rating_5"}:
        assert before[name].take(rows).equals(after[name].take(rows)), name
    rows = np.flatnonzero(ratings.time > now + 86400)
    assert not before["user_mean"].take(rows).equals(after["user_mean"].take(rows))


@pytest.mark.parametrize("part, unchanged", [(2, (0, 1, 2)), (1, (0, 1))])
def test_held_out_labels_feed_no_row_of_their_own_or_an_earlier_part(ratings, whole, part, unchanged):
    changed = shuffled(ratings, ratings.split == part, seed=2)
    before, after = whole, ml100k.table(changed)
    rows = np.flatnonzero(np.isin(ratings.split, unchanged))
    for name in set(before.column_names) - {"like", "rating_3", "rating_5"}:
        assert before[name].take(rows).equals(after[name].take(rows)), name


@pytest.fixture
def source(tmp_path):
    """A copy of the raw files that a test may damage."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for suffix in (".inter", ".user", ".item"):
        shutil.copyfile(ml100k_ratings.find_source() / f"ml-100k{suffix}", folder / f"ml-100k{suffix}")
    return folder


def edit(source, suffix, change):
    path = source / f"ml-100k{suffix}"
    lines = path.read_text().splitlines()
    path.write_text("".join(line + "\n" for line in change(lines)))


def with_line(number, text):
    return lambda lines: [*lines[: number - 1], text, *lines[number:]]


@pytest.mark.parametrize(
    "suffix, change, message",
    [
        (".inter", with_line(7, "1\t2\t3"), r"line 7 has 3 fields, expected 4 \[file .*ml-100k.inter\]"),
        (".inter", with_line(7, "1\t2\tgood\t881250949"), r"line 7: .*'good' \[file .*column rating:float\]"),
        (".inter", with_line(7, "1\t2\t\t881250949"), r"line 7: the value is missing \[file .*column rating:float\]"),
        (".inter", with_line(7, "1\t2\t6\t881250949"), r"line 7: 6 is not in \[1, 5\] \[file .*column rating:float\]"),
        (".inter", with_line(7, "944\t2\t3\t881250949"), r"line 7: 944 is not in \[1, 943\].*column user_id:token\]"),
        (".inter", with_line(7, "1\t0\t3\t881250949"), r"line 7: 0 is not in \[1, 1682\].*column item_id:token\]"),
        (".inter", with_line(1, "user_id:token\titem_id:token\trating\ttimestamp:float"), "column rating:float"),
        (".inter", lambda lines: lines[:1], "header and no rows"),
        (".inter", lambda lines: [], "the file is empty"),
        (".inter", lambda lines: lines[:5000], r"user \d+ has \d+ ratings, at least 20 are needed"),
        (".user", with_line(3, "2\t53\tX\tother\t94043"), r"line 3: 'X' is none of F, M .*column gender:token\]"),
        (".user", with_line(3, "2\told\tF\tother\t94043"), r"line 3: .*'old' \[file .*column age:token\]"),
        (".item", with_line(3, "2\tGoldenEye\t1995\tAction Spy"), r"line 3: 'Spy' is none of Action.*class:token_seq"),
    ],
)
def test_bad_files_leave_nothing(source, suffix, change, message):
    edit(source, suffix, change)
    with pytest.raises(DataError, match=message):
        ml100k.convert(source.parent / "out", source)
    assert [p.name for p in source.parent.iterdir()] == ["raw"]


def test_missing_file_and_missing_package(source, monkeypatch):
    (source / "ml-100k.user").unlink()
    with pytest.raises(DataError, match=r"No such file.*ml-100k.user"):
        ml100k.convert(source.parent / "out", source)
    monkeypatch.setattr(ml100k_ratings.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"recbole package, which is not installed. `pip install --no-deps recbole"):
        ml100k.convert(source.parent / "out")
    assert not (source.parent / "out").exists()
