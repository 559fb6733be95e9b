"""RecBole's atomic files (tab-separated, headers `name:type`), so that any of its data sets can be used.

`<name>.inter` has a row per interaction, `<name>.user` and `<name>.item`, if there, the sides' columns. A `token`
becomes an id (1, 2, ... in the order of its first appearance, 0 = missing), a `token_seq` (words between blanks) a list
of ids, a `float` a dense column. With timestamps a row has a history: what the user did before, strictly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from faceter.data.convert.folder import FolderWriter
from faceter.data.convert.fractions import OrderSplit
from faceter.data.convert.history import gather, past
from faceter.data.convert.moments import Moments
from faceter.data.convert.text import read_header, read_text
from faceter.data.errors import DataError
from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn

_ARROW = {"token": pa.string(), "token_seq": pa.string(), "float": pa.float64()}


@dataclass
class _Field:
    """A column of one file: `kind` token (values: ids), token_seq (Arrow list of ids) or float (numpy)."""

    kind: str
    values: np.ndarray | pa.ListArray


def convert(
    out: str | Path,
    source: str | Path,
    *,
    label: str = "rating",
    positive_from: float | None = None,
    user: str = "user_id",
    item: str = "item_id",
    timestamp: str = "timestamp",
    leave_out: tuple[str, ...] = (),
    max_history: int = 200,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    overwrite: bool = False,
    block_rows: int = 8192,
) -> Schema:
    """Writes the data set folder `out` from the atomic files in the folder `source` (which holds one `.inter`).

    The files are read whole; only the histories are made block by block. Rows are split by time (by their order if
    there is no `timestamp`): the last ones are the test part. A history holds no row of the own held-out part.

    Args:
        out: the folder to make.
        source: folder with `<name>.inter` and, if there are, `<name>.user` and `<name>.item`.
        label: float column of `.inter`; as it is (0 or 1), or 1 where it is at least `positive_from`.
        user, item, timestamp: names of these columns.
        leave_out: columns that are not wanted.
        max_history: newest events that a history keeps.
        valid_fraction, test_fraction, overwrite: as in the other converters.

    Raises:
        DataError: a file, column or value is missing or of another type (the line is named). `out` is left alone.
    """
    source = Path(source)
    found = sorted(source.glob("*.inter")) if source.is_dir() else []
    if len(found) != 1:
        raise DataError(f"the folder holds {len(found)} files *.inter, one is needed", file=source)
    path = found[0]
    vocabularies: dict[str, dict[str, int]] = {}
    log = _read(path, vocabularies, leave_out)
    for name, kinds in ((user, ("token",)), (item, ("token",)), (label, ("float",))):
        if name not in log or log[name].kind not in kinds:
            raise DataError(f"no column {name}:{kinds[0]}", file=path, column=name, remedy=f"It has {', '.join(log)}")
    target = log[label].values
    labels = target if positive_from is None else (target >= positive_from).astype(np.float64)
    _check(path, label, np.isnan(target), "the value is missing")
    _check(path, label, (labels < 0) | (labels > 1), "a label must be in [0, 1]; pass positive_from")
    sides = {}
    for key, suffix in ((user, ".user"), (item, ".item")):
        if (side := path.with_suffix(suffix)).exists():
            sides[key] = _read(side, vocabularies, leave_out)
            if key not in sides[key]:
                raise DataError("the side file lacks its key", file=side, column=key)

    num_rows = len(target)
    times = None
    if timestamp in log:
        _check(path, timestamp, np.isnan(log[timestamp].values), "the value is missing")
        times = log[timestamp].values.astype(np.int64)
    # Part of each row by its place in time.
    part = np.zeros(num_rows, np.int64)
    by_time = np.argsort(times, kind="stable") if times is not None else np.arange(num_rows)
    for number, (_, start, length) in enumerate(
        OrderSplit(num_rows, valid_fraction, test_fraction).pieces(0, num_rows)
    ):
        part[by_time[start : start + length]] = number
    columns, dense, sparse = _features(log, sides, {label, timestamp}, vocabularies)

    sequences: tuple[SequenceGroup, ...] = ()
    if times is not None:
        users = log[user].values
        order = np.lexsort((np.arange(num_rows), times, users))
        start, end = past(users[order], times[order])
        # Rows of the own held-out part come after all rows of earlier parts: the first of them ends the history.
        key = users[order] * 3 + part[order]
        own = np.searchsorted(key, key, side="left")
        end = np.where(part[order] > 0, np.minimum(end, own), end)
        first = np.maximum(end - max_history, start)
        bounds = np.empty((num_rows, 2), np.int64)
        bounds[order] = np.stack([first, end], axis=1)
        logged = {f"past_{item}": log[item].values, f"past_{label}": target, f"past_{timestamp}": times}
        logged = {name: values[order] for name, values in logged.items()}
        sequences = (
            SequenceGroup(
                name="past",
                ids=(SparseColumn(f"past_{item}", len(vocabularies[item]) + 1, table=item),),
                dense=(DenseColumn(f"past_{label}"),),
                timestamp=f"past_{timestamp}",
                max_length=max_history,
            ),
        )

    moments = [Moments(column) for column in dense]
    with FolderWriter(out, overwrite=overwrite, row_group_rows=block_rows) as writer:
        for number, split in enumerate(("train", "valid", "test")):
            rows = by_time[part[by_time] == number]
            for begin in range(0, len(rows), block_rows):
                chosen = rows[begin : begin + block_rows]
                table = {label: pa.array(labels[chosen])}
                table |= {name: values(chosen) for name, values in columns.items()}
                if times is not None:
                    table |= {name: gather(values, *bounds[chosen].T) for name, values in logged.items()}
                    table[timestamp] = pa.array(times[chosen])
                writer.write(split, pa.table(table))
                if split == "train":
                    for m in moments:
                        m.add(table[m.column.name].to_numpy(zero_copy_only=False))
        schema = Schema(
            name=path.stem,
            labels=(Label(label),),
            dense=tuple(m.normalised() for m in moments),
            sparse=sparse,
            sequences=sequences,
            timestamp=timestamp if times is not None else None,
        )
        writer.finish(schema)
    return schema


def _features(log, sides, excluded, vocabularies):
    """What a row is described by: ({name: rows -> Arrow column}, dense columns, id columns)."""
    columns, dense, sparse = {}, [], []
    joined = [(log, None, excluded)] + [(side, key, {key}) for key, side in sides.items()]
    for fields, key, skipped in joined:
        place = None
        if key is not None:
            # Row of the side file of each id; one past its end stands for "no such line".
            place = np.full(len(vocabularies[key]) + 1, len(fields[key].values))
            place[fields[key].values] = np.arange(len(fields[key].values))
        for name, field in fields.items():
            if name in skipped:
                continue
            if name in columns:
                raise DataError("two of the files have this column", column=name, remedy="Leave it out")
            columns[name] = _lookup(field, None if key is None else (log[key].values, place))
            if field.kind == "float":
                dense.append(DenseColumn(name, fill=0.0))
            else:
                sparse.append(SparseColumn(name, len(vocabularies[name]) + 1))
    return columns, dense, tuple(sparse)


def _lookup(field: _Field, join: tuple[np.ndarray, np.ndarray] | None):
    if field.kind == "token_seq":
        # One empty list behind the last: the place of an id without a line.
        values = pa.chunked_array([field.values, pa.array([[]], field.values.type)]).combine_chunks()
    else:
        values = np.append(field.values, 0 if field.kind == "token" else np.nan)

    def column(rows: np.ndarray) -> pa.Array:
        places = rows if join is None else join[1][join[0][rows]]
        if field.kind == "token_seq":
            return values.take(pa.array(places))
        return pa.array(values[places], from_pandas=True)

    return column


def _read(path: Path, vocabularies: dict[str, dict[str, int]], leave_out: tuple[str, ...]) -> dict[str, _Field]:
    """Columns of one file; adds its tokens to the vocabularies."""
    kinds = {}
    for head in read_header(path, "\t"):
        name, _, kind = head.partition(":")
        if name in leave_out:
            continue
        if kind not in _ARROW:
            raise DataError(
                f"the header {head!r} is none of name:token, name:token_seq, name:float",
                file=path,
                column=name,
                remedy="Leave the column out, or write its type",
            )
        kinds[name] = kind
    batches = list(read_text(path, "\t", {f"{name}:{kind}": _ARROW[kind] for name, kind in kinds.items()}))
    if not batches:
        raise DataError("the file has a header and no rows", file=path)
    table = pa.Table.from_batches(batches)
    fields = {}
    for name, kind in kinds.items():
        column = table[f"{name}:{kind}"].combine_chunks()
        if kind == "float":
            fields[name] = _Field(kind, column.to_numpy(zero_copy_only=False))
            continue
        vocabulary = vocabularies.setdefault(name, {})
        if kind == "token":
            fields[name] = _Field(kind, _ids(column, vocabulary))
            continue
        split = pc.utf8_split_whitespace(column.fill_null(""))
        words = split.flatten()
        # Splitting "" gives one empty word: it is dropped, and the row's list is empty.
        real = pc.not_equal(words, "").to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(real)])[split.offsets.to_numpy()]
        fields[name] = _Field(
            kind, pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(_ids(words, vocabulary)[real]))
        )
    return fields


def _ids(tokens: pa.Array, vocabulary: dict[str, int]) -> np.ndarray:
    encoded = tokens.fill_null("").dictionary_encode()
    known = [vocabulary.setdefault(t, len(vocabulary) + 1) if t else 0 for t in encoded.dictionary.to_pylist()]
    return np.array(known, np.int64)[encoded.indices.to_numpy()]


def _check(path: Path, column: str, bad: np.ndarray, problem: str) -> None:
    if bad.any():
        raise DataError(f"line {int(bad.argmax()) + 2}: {problem}", file=path, column=column)
