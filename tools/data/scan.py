"""Reads Parquet files row group by row group through the reader's checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from faceter.data.check import RowChecks, check_types, extra_columns
from faceter.data.convert.folder import SPLITS
from faceter.data.decode import decode
from faceter.data.errors import DataError
from faceter.data.files import ParquetFiles, one_line, open_file, read_footers
from faceter.data.schema import Schema


def find_splits(path: Path) -> dict[str, Path]:
    """The parts of a data set folder that are there (`train`, ...), or the path itself under the name `all`."""
    return {split: path / split for split in SPLITS if (path / split).is_dir()} or {"all": path}


def load_schema(path: Path, schema_file: Path | None) -> Schema:
    """The schema named, else `schema.yaml` in the folder (or beside the file).

    Raises:
        DataError: there is no `path`; see `Schema.load`.
    """
    if not path.exists():
        raise DataError("no such file or folder", file=path)
    return Schema.load(schema_file or (path if path.is_dir() else path.parent))


class Scan:
    """One pass over the files below a path.

    Args:
        path: folder or file.
        schema: roles of the columns.
        skip: count bad rows instead of raising at the first.

    Attributes:
        files: the footers.
        extra: columns that the schema does not name.
        bad: Counter of (file, column, problem), filled while `tables` runs.

    Raises:
        DataError: a file is broken or at odds with the schema; with `skip` False also a bad row.
    """

    def __init__(self, path: Path, schema: Schema, *, skip: bool):
        self.schema, self.skip = schema, skip
        self.files: ParquetFiles = read_footers(path)
        check_types(self.files.schema, schema, self.files.files[0])
        self.extra = extra_columns(self.files.schema, schema)
        self.bad: Counter[tuple[str, str, str]] = Counter()

    @property
    def num_bad(self) -> int:
        return sum(self.bad.values())

    def tables(self) -> Iterator[pa.Table]:
        """The row groups, checked, bad rows included."""
        names = list(self.schema.columns)
        for number, path in enumerate(self.files.files):
            groups = [g for g in self.files.row_groups if g.file == number]
            with open_file(path) as file:
                for group in groups:
                    try:
                        table = file.read_row_group(group.index, columns=names, use_threads=False)
                    except (pa.ArrowException, OSError) as error:
                        raise DataError(
                            f"can't read the row group ({one_line(error)})", file=path, row_group=group.index
                        ) from None
                    checks = RowChecks(
                        group.rows, file=path, row_group=group.index, first_row=group.first_row, skip=self.skip
                    )
                    rows = decode(table, self.schema, checks)
                    counts = np.bincount(rows.reason[rows.reason >= 0], minlength=len(rows.problems))
                    for problem, count in zip(rows.problems, counts.tolist(), strict=True):
                        self.bad[problem] += count
                    yield table
