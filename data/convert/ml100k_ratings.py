"""The raw files of MovieLens-100K, as they lie in the recbole package, to arrays.

The data are under GroupLens' terms (research use, with acknowledgement) and stay in the package.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from faceter.data.convert.text import read_text
from faceter.data.errors import DataError

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
# Of each user's last ratings: this many are the test part, as many before them the validation part.
HELD_OUT = 10


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
