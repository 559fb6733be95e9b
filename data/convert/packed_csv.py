"""CSV whose histories are packed into one field: `3^17^5`.

The roles of the columns are a schema that the user writes; what CSV can't say itself (which id columns hold lists,
which hold strings) are arguments. An empty field is an empty history, a missing number (filled if its column has
`fill`), or the id 0 of a hashed column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from faceter.data.convert.folder import FolderWriter
from faceter.data.convert.fractions import OrderSplit
from faceter.data.convert.hashing import hash_ids
from faceter.data.convert.text import count_lines, read_text
from faceter.data.errors import DataError
from faceter.data.schema import Schema, SparseColumn


def convert(
    out: str | Path,
    source: str | Path,
    schema: Schema,
    *,
    delimiter: str = ",",
    list_separator: str = "^",
    hashed: Sequence[str] = (),
    lists: Sequence[str] = (),
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    overwrite: bool = False,
    block_bytes: int = 1 << 20,
) -> Schema:
    """Writes the data set folder `out` from the CSV file `source` (with a header), in memory for a few blocks of text.

    Args:
        out: the folder to make.
        source: the file; fields may be in double quotes but not hold line breaks. Columns outside the schema are
            left out.
        schema: roles of the columns; columns of sequence groups hold packed lists.
        delimiter: between fields, one character.
        list_separator: between the elements of a packed list.
        hashed: id columns of strings (or of huge numbers): they become `hashing.hash_ids` of their text.
        lists: id columns outside the groups that hold packed lists.
        valid_fraction, test_fraction: the last rows are the test part, those before them the validation part.
        overwrite: replace `out` if it is there.

    Raises:
        DataError: a line is at odds with the header or the schema (line and column are named). `out` is left alone.
    """
    source = Path(source)
    parsers = _parsers(schema, list_separator, frozenset(hashed), frozenset(lists))
    types = dict.fromkeys(parsers, pa.string())
    blocks = read_text(source, delimiter, types, quoted=True, block_bytes=block_bytes)
    with FolderWriter(out, overwrite=overwrite) as writer:
        done, split = 0, None
        for batch in blocks:
            split = split or OrderSplit(count_lines(source) - 1, valid_fraction, test_fraction)
            columns = {}
            try:
                for name, parse in parsers.items():
                    columns[name] = parse(batch[name])
                _check_groups(schema, columns)
            except _Bad as bad:
                problem = f"line {done + bad.row + 2}: {bad.problem}"
                raise DataError(problem, file=source, column=bad.column or name) from None
            table = pa.table(columns)
            for part, start, length in split.pieces(done, table.num_rows):
                writer.write(part, table.slice(start, length))
            done += table.num_rows
        if not done:
            raise DataError("the file has a header and no rows", file=source)
        writer.finish(schema)
    return schema


class _Bad(Exception):
    def __init__(self, row: int, problem: str, column: str | None = None):
        self.row, self.problem, self.column = row, problem, column


def _parsers(
    schema: Schema, separator: str, hashed: frozenset[str], lists: frozenset[str]
) -> dict[str, Callable[[pa.Array], pa.Array]]:
    """Column -> function from its fields (strings, null = empty) to what is written."""
    id_columns = {c.name for c in (*schema.sparse, *(c for g in schema.sequences for c in g.ids))}
    for option, names, known in (("hashed", hashed, id_columns), ("lists", lists, {c.name for c in schema.sparse})):
        if unknown := sorted(names - known):
            raise DataError(
                f"{option} names {unknown[0]!r}, which is none of the schema's id columns that it can be said of",
                column=unknown[0],
                remedy=f"Those are {', '.join(sorted(known)) or 'none'}",
            )

    def ids(column: SparseColumn) -> Callable[[pa.Array], pa.Array]:
        if column.name in hashed:
            if column.num_embeddings < 2:
                raise DataError("a hashed column needs num_embeddings of at least 2", column=column.name)
            return lambda fields: pa.array(hash_ids(fields, column.num_embeddings))
        return lambda fields: _integers(fields, 0, column.num_embeddings - 1)

    def packed(parse: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
        return lambda fields: _packed(fields, separator, parse)

    time = lambda fields: _integers(fields, 0, 2**62)  # noqa: E731
    parsers = {c.name: lambda fields: _floats(fields, 0.0, 1.0) for c in schema.labels}
    parsers |= {c.name: lambda fields, fill=c.fill: _floats(fields, missing=fill is not None) for c in schema.dense}
    parsers |= {c.name: packed(ids(c)) if c.name in lists else ids(c) for c in schema.sparse}
    for group in schema.sequences:
        parsers |= {c.name: packed(ids(c)) for c in group.ids}
        for c in group.dense:
            parsers[c.name] = packed(lambda fields, fill=c.fill: _floats(fields, missing=fill is not None))
        if group.timestamp:
            parsers[group.timestamp] = packed(time)
    if schema.timestamp:
        parsers[schema.timestamp] = time
    if schema.weight:
        parsers[schema.weight] = lambda fields: _floats(fields, 0.0)
    if schema.domain:
        parsers[schema.domain.column] = lambda fields: _domains(fields, schema.domain.values)
    return parsers


def _numbers(fields: pa.Array, kind: pa.DataType, pattern: str, what: str) -> pa.Array:
    """Strings to numbers; null stays null."""
    wrong = pc.invert(pc.match_substring_regex(fields, pattern)).fill_null(False)
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise _Bad(row, f"{fields[row].as_py()!r} is not {what}")
    return fields.cast(kind)


def _present(values: pa.Array) -> None:
    if values.null_count:
        raise _Bad(pc.index(values.is_null(), True).as_py(), "the value is missing")


def _within(values: pa.Array, low: float | None, high: float | None) -> None:
    array = values.to_numpy(zero_copy_only=False)
    bad = np.zeros(len(array), bool)
    if low is not None:
        bad |= array < low
    if high is not None:
        bad |= array > high
    if bad.any():
        row = int(bad.argmax())
        raise _Bad(row, f"{array[row]} is not {f'in [{low}, {high}]' if high is not None else f'at least {low}'}")


def _integers(fields: pa.Array, low: int, high: int) -> pa.Array:
    values = _numbers(fields, pa.int64(), r"^[+-]?\d{1,18}$", "an integer of at most 18 digits")
    _present(values)
    _within(values, low, high)
    return values


def _floats(fields: pa.Array, low: float | None = None, high: float | None = None, missing: bool = False) -> pa.Array:
    values = _numbers(fields, pa.float32(), r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$", "a number")
    if not missing:
        _present(values)
    _within(values, low, high)
    return values


def _domains(fields: pa.Array, known: tuple[str | int, ...]) -> pa.Array:
    _present(fields)
    wrong = pc.invert(pc.is_in(fields, pa.array([str(v) for v in known])))
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise _Bad(row, f"{fields[row].as_py()!r} is none of the domains {', '.join(map(str, known))}")
    return fields if isinstance(known[0], str) else fields.cast(pa.int64())


def _packed(fields: pa.Array, separator: str, parse: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Packed lists; an empty field is an empty list, an empty element a missing value."""
    split = pc.split_pattern(fields, separator)
    lengths = split.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    elements = split.flatten()
    elements = pc.if_else(pc.equal(elements, ""), None, elements)
    try:
        values = parse(elements)
    except _Bad as bad:
        row = int(np.searchsorted(offsets, bad.row, side="right")) - 1
        raise _Bad(row, f"element {bad.row - offsets[row]}: {bad.problem}") from None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _check_groups(schema: Schema, columns: dict[str, pa.Array]) -> None:
    for group in schema.sequences:
        names = [c.name for c in (*group.ids, *group.dense)] + ([group.timestamp] if group.timestamp else [])
        first = columns[names[0]].value_lengths().to_numpy()
        for name in names[1:]:
            lengths = columns[name].value_lengths().to_numpy()
            if (lengths != first).any():
                row = int((lengths != first).argmax())
                problem = f"{lengths[row]} elements, but {first[row]} in {names[0]} of the same group {group.name!r}"
                raise _Bad(row, problem, name)
