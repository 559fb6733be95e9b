"""MovieLens-100K, as it lies in the recbole package, to rows with histories and statistics of the strict past.

Label: rating >= 4; rating >= 3 and rating >= 5 are further tasks. Each user's last 10 ratings are the test part, the 10
before them the validation part. What a row may know is in `ml100k_features`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from faceter.data.convert.folder import FolderWriter
from faceter.data.convert.history import gather
from faceter.data.convert.ml100k_features import LIKED, features, history_end
from faceter.data.convert.ml100k_ratings import (
    GENDERS,
    GENRES,
    NUM_ITEMS,
    NUM_USERS,
    OCCUPATIONS,
    Ratings,
    find_source,
    read,
)
from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn

NUM_GENRE_SETS = 256
# A bucket of release years begins at each of these.
YEARS = (1935, 1945, 1955, 1962, 1968, 1974, 1979, 1983, 1986, 1989, 1991, 1992, 1993, 1994, 1995, 1996, 1997, 1998)
AGES = (18, 22, 25, 28, 32, 36, 40, 45, 50, 56)
# Events that are written, and of these what the schema asks the reader for.
MAX_HISTORY, READ_HISTORY = 100, 30
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
