"""What a Parquet file must satisfy to fit a schema: types of columns, and values row by row (vectorised).

Extra columns are legal and never read; `extra_columns` names them for whoever wants to be strict.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from faceter.data.errors import DataError
from faceter.data.schema import Schema

_REMEDY = 'Repair the row, or drop such rows with on_bad_row="skip"'


def is_list(kind: pa.DataType) -> bool:
    return pt.is_list(kind) or pt.is_large_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)


def _is_string(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        kind = kind.value_type
    return pt.is_string(kind) or pt.is_large_string(kind)


def _is_list_of(check):
    return lambda kind: is_list(kind) and check(kind.value_type)


_NUMBER = (_is_number, "a number (integer, float or bool)")
_INTEGER = (pt.is_integer, "an integer")
_IDS = (lambda kind: pt.is_integer(kind) or _is_list_of(pt.is_integer)(kind), "an integer or a list of integers")
_LIST_OF_INTEGERS = (_is_list_of(pt.is_integer), "a list of integers")
_LIST_OF_NUMBERS = (_is_list_of(_is_number), "a list of numbers")
_STRING = (_is_string, "a string")


def _wanted_types(schema: Schema):
    """Pairs of a column's name and what its type must be."""
    for column in (*schema.labels, *schema.dense):
        yield column.name, _NUMBER
    for column in schema.sparse:
        yield column.name, _IDS
    for group in schema.sequences:
        for column in group.ids:
            yield column.name, _LIST_OF_INTEGERS
        for column in group.dense:
            yield column.name, _LIST_OF_NUMBERS
        if group.timestamp:
            yield group.timestamp, _LIST_OF_INTEGERS
    if schema.timestamp:
        yield schema.timestamp, _INTEGER
    if schema.weight:
        yield schema.weight, _NUMBER
    if schema.domain:
        yield schema.domain.column, _STRING if isinstance(schema.domain.values[0], str) else _INTEGER


def check_types(columns: pa.Schema, schema: Schema, file: Path) -> None:
    """Every column of `schema` is in the file once, with a type that its role can read.

    Raises:
        DataError: a column is missing, is there twice, or has a wrong type.
    """
    for name, (fits, wanted) in _wanted_types(schema):
        count = columns.names.count(name)
        if count == 0:
            raise DataError(
                "the file lacks a column of the schema",
                file=file,
                column=name,
                remedy=f"It has: {', '.join(columns.names) or 'none'}",
            )
        if count > 1:
            raise DataError("the file has two columns of this name", file=file, column=name)
        kind = columns.field(name).type
        if not fits(kind):
            raise DataError(
                f"the column must be {wanted}, is {kind}", file=file, column=name, remedy="Cast it, or mend the schema"
            )


def extra_columns(columns: pa.Schema, schema: Schema) -> list[str]:
    """Columns of a file that the schema does not name; the reader ignores them."""
    known = set(schema.columns)
    return [name for name in columns.names if name not in known]


class RowChecks:
    """Collects the bad rows of a run of n rows.

    Args:
        rows: n.
        file: for the message.
        row_group: for the message.
        first_row: index inside the file of the first of the n rows.
        skip: False raises at the first bad row; True marks it.

    Attributes:
        reason: (n,) int32, index into `problems` of the first problem found in each row, -1 for a good row.
        problems: (column, problem) pairs.
    """

    def __init__(self, rows: int, *, file: Path, row_group: int, first_row: int, skip: bool):
        self.file, self.row_group, self.first_row, self.skip = file, row_group, first_row, skip
        self.reason = np.full(rows, -1, np.int32)
        self.problems: list[tuple[str, str]] = []

    def fail(self, rows: np.ndarray, column: str, problem: str, values: np.ndarray | None = None) -> None:
        """Rows (ascending indices, repeats allowed) are bad; `values` are the offending values, one per index.

        Raises:
            DataError: there is such a row and `skip` is False.
        """
        if not len(rows):
            return
        if not self.skip:
            shown = f": {values[0]}" if values is not None else ""
            raise DataError(
                problem + shown,
                file=self.file,
                row_group=self.row_group,
                row=self.first_row + int(rows[0]),
                column=column,
                remedy=_REMEDY,
            )
        rows = rows[self.reason[rows] < 0]
        self.reason[rows] = len(self.problems)
        self.problems.append((column, problem))


def outside_ids(ids: np.ndarray, num_embeddings: int) -> np.ndarray | None:
    """Positions of ids outside [0, num_embeddings), or None. One pass where all is well."""
    if not ids.size:
        return None
    # As unsigned a negative number is huge, so that one maximum finds both ends.
    unsigned = ids.view(f"u{ids.dtype.itemsize}")
    if int(unsigned.max()) < min(num_embeddings, 1 << (8 * ids.dtype.itemsize - (ids.dtype.kind == "i"))):
        return None
    return np.flatnonzero((ids < 0) | (ids >= num_embeddings))


def not_finite(numbers: np.ndarray) -> np.ndarray | None:
    """Positions of NaN and infinities, or None. One pass where all is well."""
    if numbers.dtype.kind != "f":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(numbers.sum()):
            return None
    found = np.flatnonzero(~np.isfinite(numbers))
    return found if found.size else None
