"""Criteo's display advertising data: label, 13 integers, 26 categories in hexadecimal; empty = missing.

Two layouts are read: Criteo's own TSV without a header, and CSV (or TSV) with a header that names
`Label`, `I1`..`I13`, `C1`..`C26` (others are left out).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from faceter.data.convert.folder import FolderWriter
from faceter.data.convert.fractions import OrderSplit
from faceter.data.convert.hashing import hash_ids
from faceter.data.convert.moments import Moments
from faceter.data.convert.text import count_lines, read_header, read_text
from faceter.data.errors import DataError
from faceter.data.schema import DenseColumn, Label, Schema, SparseColumn

INTEGERS = tuple(f"I{n}" for n in range(1, 14))
CATEGORIES = tuple(f"C{n}" for n in range(1, 27))
NAMES = ("label", *INTEGERS, *CATEGORIES)


def schema(num_embeddings: int = 100_000, dense: tuple[DenseColumn, ...] | None = None) -> Schema:
    """The schema: `label`, integers by log1p (missing = 0) normalised as `dense` says, categories hashed."""
    if dense is None:
        dense = tuple(DenseColumn(name, log1p=True, fill=0.0) for name in INTEGERS)
    return Schema(
        name="criteo",
        labels=(Label("label"),),
        dense=dense,
        sparse=tuple(SparseColumn(name, num_embeddings) for name in CATEGORIES),
    )


def convert(
    out: str | Path,
    source: str | Path,
    *,
    num_embeddings: int = 100_000,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    overwrite: bool = False,
    block_bytes: int = 1 << 20,
) -> Schema:
    """Writes the data set folder `out` from the file `source`, in memory for a few blocks of text.

    Missing integers stay null (the schema fills them); mean and std are measured on the training part. Categories
    become `hashing.hash_ids` of their text in a table of `num_embeddings` rows each, 0 = missing. The rows are split in
    their order, which is the order in time: the last ones are the test part.

    Raises:
        DataError: the file is missing, empty or of another layout; a line has another number of fields, a label that is
            not 0 or 1, or an integer that is none. `out` is left alone.
    """
    if num_embeddings < 2:
        raise DataError(f"num_embeddings must be at least 2 (0 is the missing value), is {num_embeddings}")
    source = Path(source)
    delimiter, names, label = _layout(source)
    header = names is None
    types = {label: pa.int64(), **dict.fromkeys(INTEGERS, pa.float32()), **dict.fromkeys(CATEGORIES, pa.string())}
    num_rows = count_lines(source) - header
    if not num_rows:
        raise DataError("the file has a header and no rows", file=source)
    split = OrderSplit(num_rows, valid_fraction, test_fraction)
    moments = [Moments(column) for column in schema(num_embeddings).dense]
    with FolderWriter(out, overwrite=overwrite) as writer:
        done = 0
        for batch in read_text(source, delimiter, types, names=names, block_bytes=block_bytes):
            table = _columns(batch, num_embeddings, source, label, first_line=done + 1 + header)
            for name, start, length in split.pieces(done, table.num_rows):
                piece = table.slice(start, length)
                writer.write(name, piece)
                if name == "train":
                    for m in moments:
                        m.add(piece[m.column.name].to_numpy())
            done += batch.num_rows
        result = schema(num_embeddings, tuple(m.normalised() for m in moments))
        writer.finish(result)
    return result


def _layout(source: Path) -> tuple[str, list[str] | None, str]:
    """(delimiter, names if there is no header, name of the label column)."""
    first = read_header(source, "\n")[0]
    delimiter = "\t" if "\t" in first else ","
    fields = first.split(delimiter)
    if "C26" in fields or "I1" in fields:
        labels = [f for f in fields if f.lower() == "label"]
        if not labels:
            raise DataError("the header lacks the column Label", file=source)
        return delimiter, None, labels[0]
    if len(fields) != len(NAMES):
        raise DataError(
            f"line 1 has {len(fields)} fields, expected {len(NAMES)}",
            file=source,
            remedy="Without a header a line is label, 13 integers, 26 categories",
        )
    return delimiter, list(NAMES), "label"


def _columns(batch: pa.RecordBatch, num_embeddings: int, source: Path, label: str, first_line: int) -> pa.Table:
    labels = batch[label]
    bad = labels.is_null().to_numpy(zero_copy_only=False) | ~np.isin(labels.fill_null(0).to_numpy(), (0, 1))
    if bad.any():
        n = int(bad.argmax())
        raise DataError(f"line {first_line + n}: the label is {labels[n]}, not 0 or 1", file=source, column=label)
    columns = {"label": labels.cast(pa.int8())}
    columns |= {name: batch[name] for name in INTEGERS}
    columns |= {name: pa.array(hash_ids(batch[name], num_embeddings)) for name in CATEGORIES}
    return pa.table(columns)
