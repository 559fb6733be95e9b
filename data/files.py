"""Which Parquet files a path means, and what their footers say: columns, row groups, rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faceter.data.errors import DataError


@dataclass(frozen=True)
class RowGroup:
    """One row group of a data set.

    Attributes:
        file: index of its file in `ParquetFiles.files`.
        index: index of the row group inside the file.
        first_row: index inside the file of its first row.
        rows: number of rows, at least 1.
    """

    file: int
    index: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class ParquetFiles:
    """The files of a data set, footers read.

    Attributes:
        files: the files in reading order.
        schema: the columns, the same in every file.
        row_groups: all row groups that have rows, in file order.
        fingerprint: hexadecimal digest of file names (relative to the folder), row group sizes and columns; the same
            for a copy in another folder.
    """

    files: tuple[Path, ...]
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]
    fingerprint: str

    @property
    def num_rows(self) -> int:
        return sum(g.rows for g in self.row_groups)


def find_files(path: str | os.PathLike | Sequence[str | os.PathLike]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Files that `path` means, with their names relative to it.

    Args:
        path: a folder (every `*.parquet` below it, sorted by relative path; names that start with `_` or `.` are left
            out, as Spark and Hive do), one file, or a list of files (kept in the given order).

    Raises:
        DataError: the path does not exist, the folder holds no Parquet file, or the list is empty.
    """
    if not isinstance(path, (str, os.PathLike)):
        files = tuple(Path(p) for p in path)
        if not files:
            raise DataError("the list of Parquet files is empty", remedy="Name at least one file")
        for file in files:
            if not file.is_file():
                raise DataError("no such file", file=file)
        return files, tuple(f.name for f in files)
    path = Path(path)
    if path.is_file():
        return (path,), (path.name,)
    if not path.exists():
        raise DataError("no such file or folder", file=path, remedy="Convert the data first, or check the path")
    names = sorted(
        f.relative_to(path).as_posix()
        for f in path.rglob("*.parquet")
        if f.is_file() and not any(part[0] in "_." for part in f.relative_to(path).parts)
    )
    if not names:
        raise DataError("the folder holds no *.parquet file", file=path, remedy="Convert the data first")
    return tuple(path / n for n in names), tuple(names)


def open_file(file: Path) -> pq.ParquetFile:
    """A Parquet file with its footer read.

    Raises:
        DataError: the file cannot be read, or is no whole Parquet file.
    """
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"cannot read: {os.strerror(error.errno)}", file=file) from None
        raise DataError(
            f"not a whole Parquet file ({one_line(error)})", file=file, remedy="It may be truncated: write it again"
        ) from None


def one_line(error: BaseException) -> str:
    """The text of an error on one line."""
    return " ".join(str(error).split()).rstrip(".")


def read_footers(path: str | os.PathLike | Sequence[str | os.PathLike]) -> ParquetFiles:
    """Reads the footers of all files that `path` means (see `find_files`).

    A file without rows is legal; a data set without rows is not.

    Raises:
        DataError: see `find_files`; a file is no whole Parquet file; two files differ in their columns; no file has a
            row.
    """
    files, names = find_files(path)
    digest = hashlib.sha256()
    row_groups: list[RowGroup] = []
    schema: pa.Schema | None = None
    for i, (file, name) in enumerate(zip(files, names, strict=True)):
        with open_file(file) as parquet:
            columns, metadata = parquet.schema_arrow.remove_metadata(), parquet.metadata
            rows = [metadata.row_group(j).num_rows for j in range(metadata.num_row_groups)]
        if schema is None:
            schema = columns
        else:
            _check_same_columns(schema, files[0], columns, file)
        first_row = 0
        for j, n in enumerate(rows):
            if n:
                row_groups.append(RowGroup(i, j, first_row, n))
            first_row += n
        digest.update(f"{name}\0{rows}\0".encode())
    digest.update(str(schema).encode())
    if not row_groups:
        where = path if isinstance(path, (str, os.PathLike)) else files[0]
        raise DataError("the data set has no rows", file=where, remedy="Every file is empty: convert the data again")
    return ParquetFiles(files, schema, tuple(row_groups), digest.hexdigest())


def _check_same_columns(first: pa.Schema, first_file: Path, other: pa.Schema, file: Path) -> None:
    """Columns may stand in another order, but names and types must agree."""
    remedy = "All files of a data set need the same columns and types: write the odd one again"
    for name in first.names:
        if name not in other.names:
            raise DataError(f"the column is in {first_file} but not here", file=file, column=name, remedy=remedy)
    for field in other:
        if field.name not in first.names:
            raise DataError(f"the column is not in {first_file}", file=file, column=field.name, remedy=remedy)
        expected = first.field(field.name).type
        if field.type != expected:
            raise DataError(
                f"the column is {field.type} here and {expected} in {first_file}",
                file=file,
                column=field.name,
                remedy=remedy,
            )
