"""Writing a data set folder: everything or nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faceter.data.errors import DataError
from faceter.data.schema import Schema

SPLITS = ("train", "valid", "test")


class FolderWriter:
    """Writes `schema.yaml` and `{train,valid,test}/part-*.parquet` into a hidden sibling of `out` that takes `out`'s
    place when the `with` block ends well and is removed when it does not.

    Rows are buffered per split until a row group is full; a part file is closed after `row_groups_per_part` of them.

    Args:
        out: the folder to make.
        overwrite: replace `out` if it is there; else a non-empty `out` is an error.
        row_group_rows: rows of a row group (the last one of a split may be shorter).
        row_groups_per_part: row groups of a part file.

    Raises:
        DataError: `out` exists and is not empty (or is no folder), or its parent can't be written.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        overwrite: bool = False,
        row_group_rows: int = 8192,
        row_groups_per_part: int = 64,
    ):
        self.out = Path(out)
        self.overwrite = overwrite
        self.row_group_rows = row_group_rows
        self.row_groups_per_part = row_groups_per_part
        self.rows = dict.fromkeys(SPLITS, 0)
        self._buffers: dict[str, list[pa.Table]] = {split: [] for split in SPLITS}
        self._buffered = dict.fromkeys(SPLITS, 0)
        self._files: dict[str, pq.ParquetWriter] = {}
        self._groups = dict.fromkeys(SPLITS, 0)

    def __enter__(self) -> FolderWriter:
        if self.out.exists() and not (self.out.is_dir() and (self.overwrite or not any(self.out.iterdir()))):
            what = "exists and is not empty" if self.out.is_dir() else "exists and is no folder"
            raise DataError(f"output {what}", file=self.out, remedy="Name another folder, or pass --overwrite")
        self.folder = self.out.with_name(f".{self.out.name}.{os.getpid()}.partial")
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        except OSError as error:
            raise DataError(f"can't write: {error.strerror}", file=self.out) from None
        return self

    def write(self, split: str, table: pa.Table) -> None:
        """Appends rows to a split. All tables of one folder have the same Arrow schema."""
        self._buffers[split].append(table)
        self._buffered[split] += table.num_rows
        self.rows[split] += table.num_rows
        if self._buffered[split] >= self.row_group_rows:
            self._flush(split, last=False)

    def finish(self, schema: Schema) -> None:
        """Writes what is buffered, and the schema; the last call of the `with` block."""
        for split in SPLITS:
            self._flush(split, last=True)
        schema.save(self.folder)

    def __exit__(self, kind, error, trace) -> None:
        for file in self._files.values():
            file.close()
        if kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        # Two renames: for a moment there is no `out`, but never a half-written one.
        old = self.out.with_name(f"{self.folder.name}.old")
        if self.out.exists():
            self.out.rename(old)
        self.folder.rename(self.out)
        shutil.rmtree(old, ignore_errors=True)

    def _flush(self, split: str, *, last: bool) -> None:
        if not self._buffered[split]:
            return
        table = pa.concat_tables(self._buffers[split])
        size = self.row_group_rows
        end = table.num_rows if last else table.num_rows // size * size
        for start in range(0, end, size):
            self._write_group(split, table.slice(start, min(size, end - start)))
        # A copy, not a slice: a slice would keep the whole table alive.
        rest = table.slice(end)
        self._buffers[split] = [rest.take(pa.array(range(rest.num_rows), pa.int64()))] if rest.num_rows else []
        self._buffered[split] = rest.num_rows

    def _write_group(self, split: str, table: pa.Table) -> None:
        part, within = divmod(self._groups[split], self.row_groups_per_part)
        if within == 0:
            if split in self._files:
                self._files.pop(split).close()
            folder = self.folder / split
            folder.mkdir(exist_ok=True)
            # Dictionaries cost most of the writing time on ids and timestamps, and zstd makes up for them.
            self._files[split] = pq.ParquetWriter(
                folder / f"part-{part:05d}.parquet", table.schema, compression="zstd", use_dictionary=False
            )
        self._files[split].write_table(table, row_group_size=table.num_rows)
        self._groups[split] += 1
