"""MovieLens-100K, as it lies in the recbole package, to rows with histories and statistics of the strict past.

Label: rating >= 4; rating >= 3 and rating >= 5 are further tasks. Each user's last 10 ratings are the test part, the 10
before them the validation part.

What a row may know (`history_end`, `_item_past`):

- of its own user, ratings with a smaller timestamp (many ratings share a second: those are not past) that lie before
  the row's block of 10. Blocks are counted from the user's last rating, so that the last one is his test part, the one
  before it his validation part: no label of a held-out part feeds another row of it, and a training row lies as far
  from what it knows as a held-out one.
- of other users, ratings of the training part with a smaller timestamp.

The data are under GroupLens' terms (research use, with acknowledgement) and stay in the package.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from faceter.data.convert.folder import FolderWriter
from faceter.data.convert.history import gather, past
from faceter.data.convert.text import read_text
from faceter.data.errors import DataError
from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn

NUM_USERS, NUM_ITEMS = 943, 1682
GENDERS = ("F", "M")
OCCUPATIONS = (
    "administrator",
    "artist",
    "doctor",
    "educator",
    "engineer",
    "entertainment",
    "executive",
    "healthcare",
    "homemaker",
    "lawyer",
    "librarian",
    "marketing",
    "none",
    "other",
    "programmer",
    "retired",
    "salesman",
    "scientist",
    "student",
    "technician",
    "writer",
)
GENRES = (
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
    "unknown",
)
NUM_GENRE_SETS = 256
USUAL_YEAR = 1990
# A bucket of release years begins at each of these.
YEARS = (1935, 1945, 1955, 1962, 1968, 1974, 1979, 1983, 1986, 1989, 1991, 1992, 1993, 1994, 1995, 1996, 1997, 1998)
AGES = (18, 22, 25, 28, 32, 36, 40, 45, 50, 56)
FIRST_TIME = 874_724_710
HELD_OUT = 10
# Events that are written, and of these what the schema asks the reader for.
MAX_HISTORY, READ_HISTORY = 100, 30
LIKED = 4
SPLIT_NAMES = ("train", "valid", "test")

# Mean and standard deviation over the training part of what the model sees (of log1p for the counts);
# ml100k_test.py measures them again.
_DENSE = {
    "user_count": (True, 3.8809, 1.4959),
    "user_mean": (False, 3.5810, 0.4047),
    "user_like_rate": (False, 0.5756, 0.1573),
    "user_like_rate_10": (False, 0.5618, 0.2265),
    "user_like_rate_30": (False, 0.5639, 0.2106),
    "user_mean_10": (False, 3.5508, 0.5681),
    "user_mean_30": (False, 3.5552, 0.5384),
    "user_std": (False, 0.9893, 0.1683),
    "user_residual": (False, -0.0314, 0.3684),
    "user_gap": (True, 4.6050, 2.3931),
    "user_span": (True, 8.3813, 3.6995),
    "user_last_hour": (True, 3.2826, 1.5932),
    "item_count": (True, 3.6428, 1.2804),
    "item_like_rate": (False, 0.5791, 0.1675),
    "item_mean": (False, 3.5929, 0.4100),
    "item_residual": (False, 0.0099, 0.3757),
    "genre_affinity": (False, 0.0189, 0.1984),
    "genre_count": (True, 2.5398, 1.2744),
    "year_affinity": (False, 0.0015, 0.1748),
    "year_count": (True, 2.8630, 1.4584),
    "popularity_affinity": (False, 0.0056, 0.1811),
    "quality_affinity": (False, -0.0009, 0.2719),
    "release_year": (False, 1987.2229, 14.4554),
    "days": (False, 99.0435, 61.6387),
    "age": (False, 32.7183, 11.3980),
}


def schema() -> Schema:
    """The schema of the converted data; reads nothing."""
    return Schema(
        name="ml100k",
        labels=(Label("like"), Label("rating_3", weight=0.3), Label("rating_5", weight=0.3)),
        dense=tuple(DenseColumn(name, log1p, mean, std) for name, (log1p, mean, std) in _DENSE.items()),
        sparse=(
            SparseColumn("user_id", NUM_USERS + 1),
            SparseColumn("item_id", NUM_ITEMS + 1, table="item"),
            SparseColumn("age_bucket", len(AGES) + 1),
            SparseColumn("gender", len(GENDERS) + 1),
            SparseColumn("occupation", len(OCCUPATIONS) + 1),
            SparseColumn("zip_area", 37),
            SparseColumn("year", len(YEARS) + 2, table="year"),
            SparseColumn("genres", len(GENRES) + 1),
            SparseColumn("genre_set", NUM_GENRE_SETS, table="genre_set"),
        ),
        sequences=(
            SequenceGroup(
                name="rated",
                ids=(
                    SparseColumn("rated_item", NUM_ITEMS + 1, table="item"),
                    SparseColumn("rated_rating", 6),
                    SparseColumn("rated_genre_set", NUM_GENRE_SETS, table="genre_set"),
                    SparseColumn("rated_year", len(YEARS) + 2, table="year"),
                ),
                dense=(
                    DenseColumn("rated_item_residual"),
                    DenseColumn("rated_user_residual"),
                    DenseColumn("rated_item_count", log1p=True, mean=3.0, std=3.0),
                ),
                timestamp="rated_time",
                max_length=READ_HISTORY,
            ),
        ),
        timestamp="timestamp",
    )


def find_source() -> Path:
    """The folder with `ml-100k.inter` inside the installed recbole package, which is not imported.

    Raises:
        DataError: recbole is not installed, or has no such folder.
    """
    remedy = "`pip install --no-deps recbole==1.2.1`, or name a folder with ml-100k.inter, .user and .item"
    spec = importlib.util.find_spec("recbole")
    if spec is None:
        raise DataError("MovieLens-100K comes with the recbole package, which is not installed", remedy=remedy)
    for root in spec.submodule_search_locations or ():
        folder = Path(root) / "dataset_example" / "ml-100k"
        if folder.is_dir():
            return folder
    raise DataError("the installed recbole package has no dataset_example/ml-100k", remedy=remedy)


@dataclass
class Ratings:
    """The raw data. N ratings, sorted by user, then timestamp, then place in the file; side tables indexed by id, row 0
    for no one.

    Attributes:
        user, item, rating, time: (N,) int64.
        place: (N,) int64, place in the file.
        age: (U + 1,) int64. gender, occupation, zip_area: (U + 1,) int64 ids, 0 = unknown.
        year: (I + 1,) int64, 0 = unknown. genres: (I + 1, len(GENRES)) float64 of 0 and 1.
    """

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    time: np.ndarray
    place: np.ndarray
    age: np.ndarray
    gender: np.ndarray
    occupation: np.ndarray
    zip_area: np.ndarray
    year: np.ndarray
    genres: np.ndarray

    @property
    def split(self) -> np.ndarray:
        """(N,) int64: 0 train, 1 valid, 2 test."""
        ends = np.searchsorted(self.user, self.user, side="right")
        return 2 - np.clip((ends - 1 - np.arange(len(ends))) // HELD_OUT, 0, 2)

    def replace(self, **arrays: np.ndarray) -> Ratings:
        return dataclasses.replace(self, **arrays)


def read(source: str | Path) -> Ratings:
    """Reads `ml-100k.{inter,user,item}`.

    Raises:
        DataError: a file is missing or empty, or a line has a value that MovieLens-100K can't have.
    """
    source = Path(source)
    path = source / "ml-100k.inter"
    types = {
        "user_id:token": pa.int64(),
        "item_id:token": pa.int64(),
        "rating:float": pa.float64(),
        "timestamp:float": pa.float64(),
    }
    user, item, rating, time = (c.astype(np.int64) for c in _columns(path, types))
    _in_range(path, "user_id:token", user, 1, NUM_USERS)
    _in_range(path, "item_id:token", item, 1, NUM_ITEMS)
    _in_range(path, "rating:float", rating, 1, 5)
    _in_range(path, "timestamp:float", time, 0, 2**40)
    counts = np.bincount(user, minlength=NUM_USERS + 1)[1:]
    if counts.min() < 2 * HELD_OUT:
        raise DataError(
            f"user {counts.argmin() + 1} has {counts.min()} ratings, at least {2 * HELD_OUT} are needed", file=path
        )
    order = np.lexsort((np.arange(len(user)), time, user))

    path = source / "ml-100k.user"
    string = pa.string()
    types = {
        "user_id:token": pa.int64(),
        "age:token": pa.int64(),
        "gender:token": string,
        "occupation:token": string,
        "zip_code:token": string,
    }
    ids, *columns = _columns(path, types)
    _in_range(path, "user_id:token", ids, 1, NUM_USERS)
    side = {name: np.zeros(NUM_USERS + 1, np.int64) for name in ("age", "gender", "occupation", "zip_area")}
    side["age"][ids] = columns[0]
    side["gender"][ids] = [1 + _index(GENDERS, v, path, "gender:token", n) for n, v in enumerate(columns[1])]
    side["occupation"][ids] = [
        1 + _index(OCCUPATIONS, v, path, "occupation:token", n) for n, v in enumerate(columns[2])
    ]
    side["zip_area"][ids] = [_zip_area(v) for v in columns[3]]

    path = source / "ml-100k.item"
    types = {"item_id:token": pa.int64(), "release_year:token": string, "class:token_seq": string}
    ids, years, classes = _columns(path, types)
    _in_range(path, "item_id:token", ids, 1, NUM_ITEMS)
    year = np.zeros(NUM_ITEMS + 1, np.int64)
    genres = np.zeros((NUM_ITEMS + 1, len(GENRES)))
    for n, (i, y, names) in enumerate(zip(ids, years, classes, strict=True)):
        year[i] = int(y) if y.isdigit() else 0
        for name in names.split():
            genres[i, _index(GENRES, name, path, "class:token_seq", n)] = 1.0
    columns = {"user": user, "item": item, "rating": rating, "time": time, "place": np.arange(len(user))}
    return Ratings(**{k: v[order] for k, v in columns.items()}, **side, year=year, genres=genres)


def _columns(path: Path, types: dict[str, pa.DataType]) -> list[np.ndarray]:
    """Columns of a whole file in the order of `types`; an empty string stays one, an empty number is an error."""
    batches = list(read_text(path, "\t", types))
    if not batches:
        raise DataError("the file has a header and no rows", file=path)
    table = pa.Table.from_batches(batches)
    columns = []
    for name, kind in types.items():
        column = table[name].combine_chunks()
        if pa.types.is_string(kind):
            column = column.fill_null("")
        elif column.null_count:
            line = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 2
            raise DataError(f"line {line}: the value is missing", file=path, column=name)
        columns.append(column.to_numpy(zero_copy_only=False))
    return columns


def _in_range(path, column, values, low, high) -> None:
    bad = (values < low) | (values > high)
    if bad.any():
        n = int(bad.argmax())
        raise DataError(f"line {n + 2}: {values[n]} is not in [{low}, {high}]", file=path, column=column)


def _index(names, value, path, column, n) -> int:
    if value not in names:
        raise DataError(f"line {n + 2}: {value!r} is none of {', '.join(names)}", file=path, column=column)
    return names.index(value)


def _zip_area(code: str) -> int:
    """The first character of a zip code (0-9, or a letter in Canada) to 1..36, anything else to 0."""
    return "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".find(code[:1].upper() or " ") + 1


def history_end(r: Ratings) -> tuple[np.ndarray, np.ndarray]:
    """(start, end), each (N,) int64: row n knows of its own user the rows [start[n], end[n])."""
    start, end = past(r.user, r.time)
    stop = np.searchsorted(r.user, r.user, side="right")
    block_start = stop - HELD_OUT * ((stop - 1 - np.arange(len(stop))) // HELD_OUT + 1)
    return start, np.maximum(np.minimum(end, block_start), start)


def _item_past(r: Ratings, values: np.ndarray) -> np.ndarray:
    """Sums (N, K) of `values` (N, K) over training rows of the same item with a smaller timestamp."""
    train = np.flatnonzero(r.split == 0)
    order = train[np.lexsort((r.time[train], r.item[train]))]
    scale = r.time.max() + 1
    key = r.item[order] * scale + r.time[order]
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values[order], axis=0)])
    first = np.searchsorted(key, r.item * scale, side="left")
    return total[np.searchsorted(key, r.item * scale + r.time, side="left")] - total[first]


def features(r: Ratings) -> dict[str, np.ndarray]:
    """The dense columns, each (N,) float64, before the schema's log1p and normalisation."""
    start, end = history_end(r)
    liked = (r.rating >= LIKED).astype(np.float64)
    rating = r.rating.astype(np.float64)
    count = (end - start).astype(np.float64)
    # Fixed priors (a rating is 3.5 on average, 55 % are liked): a mean over the data would know the future.
    prior_mean, prior_like, prior_var = 3.5, 0.55, 1.1

    def total(values, first):
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return sums[end] - sums[first]

    user_sum, user_likes = total(rating, start), total(liked, start)
    user_mean = (user_sum + 5 * prior_mean) / (count + 5)
    user_like = (user_likes + 5 * prior_like) / (count + 5)
    raw_mean = user_sum / np.maximum(count, 1)
    deviation = np.maximum(total(rating**2, start) - count * raw_mean**2, 0.0)
    out = {
        "user_count": count,
        "user_mean": user_mean,
        "user_like_rate": user_like,
        "user_std": np.sqrt((deviation + 5 * prior_var) / (count + 5)),
    }
    for k in (10, 30):
        first = np.maximum(end - k, start)
        n = end - first
        out[f"user_like_rate_{k}"] = (total(liked, first) + 3 * user_like) / (n + 3)
        out[f"user_mean_{k}"] = (total(rating, first) + 3 * user_mean) / (n + 3)
    has = end > start
    last = np.where(has, r.time[np.maximum(end - 1, 0)], r.time)
    out["user_gap"] = (r.time - last).astype(np.float64)
    out["user_span"] = np.where(has, r.time - r.time[start], 0).astype(np.float64)
    hour = np.searchsorted(
        r.user * (r.time.max() + 1) + r.time, r.user * (r.time.max() + 1) + r.time - 3600, side="right"
    )
    out["user_last_hour"] = np.maximum(end - np.maximum(hour, start), 0).astype(np.float64)

    ones = np.ones_like(rating)
    item_count, item_sum, item_likes, item_residual = _item_past(
        r, np.stack([ones, rating, liked, rating - user_mean], axis=1)
    ).T
    item_mean = (item_sum + 5 * prior_mean) / (item_count + 5)
    out["item_count"] = item_count
    out["item_like_rate"] = (item_likes + 5 * prior_like) / (item_count + 5)
    out["item_mean"] = item_mean
    out["item_residual"] = item_residual / (item_count + 5)
    year = np.where(r.year[r.item] > 0, r.year[r.item], USUAL_YEAR).astype(np.float64)
    out["release_year"] = year
    out["days"] = (r.time - FIRST_TIME) / 86_400
    out["age"] = r.age[r.user].astype(np.float64)

    # What this user thought of items like this one: his residuals, weighted by likeness.
    direction = r.genres / np.maximum(np.linalg.norm(r.genres, axis=1, keepdims=True), 1.0)
    names = ("genre_affinity", "genre_count", "year_affinity", "year_count")
    names += ("popularity_affinity", "quality_affinity", "user_residual")
    out |= {name: np.zeros(len(rating)) for name in names}
    popularity = np.log1p(item_count)
    for first in np.flatnonzero(np.r_[True, r.user[1:] != r.user[:-1]]):
        rows = slice(first, np.searchsorted(r.user, r.user[first], side="right"))
        n = rows.stop - rows.start
        known = np.arange(n) < (end[rows] - start[rows])[:, None]
        residual = rating[rows] - user_mean[rows][:, None]

        def affinity(weight, known=known, residual=residual):
            weight = weight * known
            return (weight * residual).sum(1) / (weight.sum(1) + 2), weight.sum(1)

        def closeness(values, width, rows=rows):
            return np.exp(-np.abs(values[rows][None, :] - values[rows][:, None]) / width)

        likeness = direction[r.item[rows]] @ direction[r.item[rows]].T
        out["genre_affinity"][rows], out["genre_count"][rows] = affinity(likeness)
        out["year_affinity"][rows], out["year_count"][rows] = affinity(closeness(year, 5.0))
        out["popularity_affinity"][rows], _ = affinity(closeness(popularity, 0.5))
        out["quality_affinity"][rows], _ = affinity(closeness(item_mean, 0.15))
        over = (rating[rows] - item_mean[rows]) * known
        out["user_residual"][rows] = over.sum(1) / (known.sum(1) + 5)
    return out


def _clip(x: np.ndarray, column: DenseColumn) -> np.ndarray:
    """(N,) float32: `x` with what the model sees of it kept within 4 standard deviations."""
    bounds = column.mean + np.array([-4.0, 4.0]) * column.std
    if column.log1p:
        bounds = np.sign(bounds) * np.expm1(np.abs(bounds))
    return np.clip(x, *bounds).astype(np.float32)


def table(r: Ratings) -> pa.Table:
    """All rows with the columns of `schema()`, in the order of `r`."""
    start, end = history_end(r)
    first = np.maximum(end - MAX_HISTORY, start)
    item_genres = [np.flatnonzero(row) + 1 for row in r.genres]
    _, genre_set = np.unique(r.genres, axis=0, return_inverse=True)
    columns = {
        name: pa.array((r.rating >= lowest).astype(np.int8))
        for name, lowest in (("like", LIKED), ("rating_3", 3), ("rating_5", 5))
    }
    dense = features(r)
    columns |= {column.name: pa.array(_clip(dense[column.name], column)) for column in schema().dense}
    year = np.where(r.year > 0, np.digitize(r.year, YEARS) + 1, 0)[r.item]
    columns |= {
        "user_id": pa.array(r.user),
        "item_id": pa.array(r.item),
        "age_bucket": pa.array(np.digitize(r.age[r.user], AGES)),
        "gender": pa.array(r.gender[r.user]),
        "occupation": pa.array(r.occupation[r.user]),
        "zip_area": pa.array(r.zip_area[r.user]),
        "year": pa.array(year),
        "genres": pa.array([item_genres[i] for i in r.item], pa.list_(pa.int64())),
        "genre_set": pa.array(genre_set[r.item]),
        "rated_item": gather(r.item, first, end),
        "rated_rating": gather(r.rating, first, end),
        "rated_genre_set": gather(genre_set[r.item], first, end),
        "rated_year": gather(year, first, end),
        # Each event against what was known of its item and its user at its own time.
        "rated_item_residual": gather((r.rating - dense["item_mean"]).astype(np.float32), first, end),
        "rated_user_residual": gather((r.rating - dense["user_mean"]).astype(np.float32), first, end),
        "rated_item_count": gather(dense["item_count"].astype(np.float32), first, end),
        "rated_time": gather(r.time, first, end),
        "timestamp": pa.array(r.time),
    }
    return pa.table({name: columns[name] for name in schema().columns})


def convert(out: str | Path, source: str | Path | None = None, *, overwrite: bool = False) -> Schema:
    """Writes the data set folder `out`; rows stay in the file's order, which is no order in time.

    Args:
        out: the folder to make.
        source: folder with ml-100k.inter, .user and .item; None = the one in the installed recbole package.
        overwrite: replace `out` if it is there.

    Raises:
        DataError: see `find_source`, `read` and `FolderWriter`.
    """
    ratings = read(find_source() if source is None else source)
    with FolderWriter(out, overwrite=overwrite, row_group_rows=4096) as writer:
        rows = table(ratings)
        for number, split in enumerate(SPLIT_NAMES):
            chosen = np.flatnonzero(ratings.split == number)
            chosen = chosen[np.argsort(ratings.place[chosen])]
            writer.write(split, rows.take(pa.array(chosen)))
        writer.finish(schema())
    return schema()
