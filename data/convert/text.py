"""Reading delimited text in bounded memory, with errors that name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from faceter.data.errors import DataError

_ROW = re.compile(r"Row #(\d+)")
_COLUMN = re.compile(r"In CSV column #(\d+)")


def read_header(path: str | Path, delimiter: str) -> list[str]:
    """Names in a text file's first line.

    Raises:
        DataError: the file is missing, is a folder, or is empty.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise DataError(f"can't read: {error.strerror}", file=path) from None
    if not line.strip():
        raise DataError("the file is empty" if not line else "the first line is empty", file=path)
    try:
        return line.decode("utf-8-sig").rstrip("\r\n").split(delimiter)
    except UnicodeDecodeError:
        raise DataError("line 1 is not UTF-8 text", file=path) from None


def read_text(
    path: str | Path,
    delimiter: str,
    types: dict[str, pa.DataType],
    *,
    names: list[str] | None = None,
    quoted: bool = False,
    block_bytes: int = 1 << 20,
) -> Iterator[pa.RecordBatch]:
    """Record batches of a delimited file, in order, about `block_bytes` of text each (pyarrow reads up to 32
    of them ahead). An empty field is null, and so are all fields of an empty line.

    Args:
        delimiter: one character.
        types: column -> Arrow type. Columns that are not named here are left out.
        names: names of the columns if the file has no header line.
        quoted: fields may be in double quotes.

    Raises:
        DataError: the file is missing or empty, lacks a column, or a line has another number of fields or a value that
            is not of the type asked for (the line is named, from 1).
    """
    path = Path(path)
    header = read_header(path, delimiter)
    known = header if names is None else names
    if names is not None and len(header) != len(names):
        raise DataError(f"line 1 has {len(header)} fields, expected {len(names)}", file=path)
    for name in types:
        if name not in known:
            raise DataError("the header lacks a column", file=path, column=name, remedy=f"It has {', '.join(header)}")
    wrong = []

    def on_wrong_fields(row):
        wrong.append((row.number, row.actual_columns, row.expected_columns))
        return "error"

    try:
        # One thread: only then does pyarrow know the line of an error. ignore_empty_lines would shift the count.
        reader = pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if quoted else False,
                ignore_empty_lines=False,
                invalid_row_handler=on_wrong_fields,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=True
            ),
        )
        yield from reader
    except pa.ArrowInvalid as error:
        if wrong:
            line, found, expected = wrong[0]
            raise DataError(f"line {line} has {found} fields, expected {expected}", file=path) from None
        text = str(error)
        row, column = _ROW.search(text), _COLUMN.search(text)
        name = known[int(column[1])] if column else None
        problem = text.rsplit("CSV conversion error", 1)[-1].strip()
        where = f"line {row[1]}: " if row else ""
        raise DataError(where + problem, file=path, column=name) from None


def count_lines(path: str | Path) -> int:
    """Lines of a file; the last one needs no line break."""
    lines, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")
