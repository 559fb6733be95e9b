"""The schema of a data set: which column plays which role.

A schema is a YAML file beside the Parquet files (`schema.yaml`) or these dataclasses. It says what is in the data;
what network is put on it is `faceter.model.config`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import yaml

from faceter.data.errors import DataError

SCHEMA_FILE = "schema.yaml"


@dataclass(frozen=True)
class DenseColumn:
    """A number: float or integer column; inside a sequence group, a list of them.

    What the model sees is `(f(x) - mean) / std`, f(x) = sign(x) log(1 + |x|) if `log1p` else x.
    A null or NaN becomes `fill` (before f); without `fill` it is an error.
    """

    name: str
    log1p: bool = False
    mean: float = 0.0
    std: float = 1.0
    fill: float | None = None


@dataclass(frozen=True)
class SparseColumn:
    """Ids in [0, num_embeddings): an integer column, or a list of integers (pooled by sum).

    Columns that name the same `table` share one embedding table (default: a table of the column's own name).
    """

    name: str
    num_embeddings: int
    table: str | None = None

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True)
class SequenceGroup:
    """One event type: list columns of equal length in each row, oldest event first.

    Args:
        name: name of the event type (`click`, `impression`, ...).
        ids: id columns (list of integers), one id per event each: "aligned sequences" in InterFormer's terms.
        dense: number columns (list of floats or integers), one number per event each.
        timestamp: column with each event's time in seconds (list of integers), or None.
        max_length: of a longer history the newest `max_length` events are read.
    """

    name: str
    ids: tuple[SparseColumn, ...]
    dense: tuple[DenseColumn, ...] = ()
    timestamp: str | None = None
    max_length: int = 1000


@dataclass(frozen=True)
class Label:
    """A binary task: a column of 0/1 (or probabilities in [0, 1]); `weight` scales its loss."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Domain:
    """The surface that a row comes from: `column` holds one of `values` (all strings or all integers)."""

    column: str
    values: tuple[str | int, ...]


@dataclass(frozen=True)
class Schema:
    """Roles of all columns that are read; the first label is the primary task."""

    name: str
    labels: tuple[Label, ...]
    dense: tuple[DenseColumn, ...] = ()
    sparse: tuple[SparseColumn, ...] = ()
    sequences: tuple[SequenceGroup, ...] = ()
    timestamp: str | None = None
    weight: str | None = None
    domain: Domain | None = None

    def __post_init__(self):
        if not self.labels:
            raise DataError(f"schema {self.name!r} has no label", remedy="Name at least one under `labels`")
        seen: set[str] = set()
        for column in self.columns:
            if column in seen:
                raise DataError(f"schema {self.name!r} names column {column!r} twice", column=column)
            seen.add(column)
        groups = [g.name for g in self.sequences]
        if len(set(groups)) != len(groups):
            raise DataError(f"schema {self.name!r} names a sequence group twice: {groups}")
        for group in self.sequences:
            if not group.ids:
                raise DataError(f"sequence group {group.name!r} has no id column", remedy="Name one under `ids`")
            if group.max_length < 1:
                raise DataError(f"sequence group {group.name!r}: max_length must be at least 1, is {group.max_length}")
            if group.timestamp and not self.timestamp:
                raise DataError(
                    f"sequence group {group.name!r} has timestamps but the rows have none",
                    remedy="Name the rows' own time column under `timestamp`",
                )
        for column in (*self.dense, *(d for g in self.sequences for d in g.dense)):
            if not column.std > 0:
                raise DataError(f"std of a dense column must be positive, is {column.std}", column=column.name)
        if self.domain and not self.domain.values:
            raise DataError("domain has no values", column=self.domain.column)
        self.tables  # noqa: B018  raises on sizes that disagree

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns read from a file, in a fixed order."""
        names = [c.name for c in (*self.labels, *self.dense, *self.sparse)]
        for group in self.sequences:
            names += [c.name for c in (*group.ids, *group.dense)] + ([group.timestamp] if group.timestamp else [])
        names += [n for n in (self.timestamp, self.weight, self.domain.column if self.domain else None) if n]
        return tuple(names)

    @property
    def tables(self) -> dict[str, int]:
        """Embedding tables: name -> number of rows."""
        sizes: dict[str, int] = {}
        for column in (*self.sparse, *(c for g in self.sequences for c in g.ids)):
            if column.num_embeddings < 1:
                raise DataError(f"num_embeddings must be at least 1, is {column.num_embeddings}", column=column.name)
            if sizes.setdefault(column.table_name, column.num_embeddings) != column.num_embeddings:
                raise DataError(
                    f"table {column.table_name!r} has {sizes[column.table_name]} rows by one column and "
                    f"{column.num_embeddings} by another",
                    column=column.name,
                    remedy="Columns that share a table need the same num_embeddings",
                )
        return sizes

    @property
    def sequence_tables(self) -> frozenset[str]:
        """Tables that some sequence reads. They (and the non-sequence columns that share them) are looked up row by
        row, through torchrec's EmbeddingCollection; all others through EmbeddingBagCollection."""
        return frozenset(c.table_name for g in self.sequences for c in g.ids)

    @property
    def bag_columns(self) -> tuple[SparseColumn, ...]:
        """Non-sequence id columns served by the EmbeddingBagCollection (keys of `Batch.sparse`, in this order)."""
        return tuple(c for c in self.sparse if c.table_name not in self.sequence_tables)

    @property
    def row_columns(self) -> tuple[SparseColumn, ...]:
        """Id columns served by the EmbeddingCollection (keys of `Batch.sequence_ids`, in this order): those of the
        groups, then the non-sequence columns that share a table with one."""
        shared = tuple(c for c in self.sparse if c.table_name in self.sequence_tables)
        return tuple(c for g in self.sequences for c in g.ids) + shared

    @property
    def num_domains(self) -> int:
        return len(self.domain.values) if self.domain else 1

    def to_yaml(self) -> str:
        return yaml.safe_dump(_plain(self), sort_keys=False)

    def save(self, folder: str | Path) -> None:
        (Path(folder) / SCHEMA_FILE).write_text(self.to_yaml())

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Reads a YAML file, or the `schema.yaml` inside a folder.

        Raises:
            DataError: the file is missing, is no YAML mapping, has an unknown or missing key or a value of a wrong
                type.
        """
        path = Path(path)
        path = path / SCHEMA_FILE if path.is_dir() else path
        try:
            tree = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise DataError("no schema", file=path, remedy="Convert with `faceter data`, or write one") from None
        except yaml.YAMLError as error:
            raise DataError(f"schema is not YAML: {' '.join(str(error).split())}", file=path) from None
        return cls.from_dict(tree, file=path)

    @classmethod
    def from_dict(cls, tree: object, file: object = None) -> Schema:
        """From the plain tree that `to_yaml` writes; see `load` for the errors."""
        try:
            return _build(cls, tree, "schema")
        except DataError as error:
            raise DataError(error.problem, file=file, column=error.column, remedy=error.remedy) from None


_NESTED = {
    "labels": Label,
    "dense": DenseColumn,
    "sparse": SparseColumn,
    "ids": SparseColumn,
    "sequences": SequenceGroup,
}


def _plain(node):
    """Dataclasses to dicts, tuples to lists, defaults left out."""
    if dataclasses.is_dataclass(node):
        return {
            f.name: _plain(getattr(node, f.name))
            for f in dataclasses.fields(node)
            if f.default is dataclasses.MISSING or getattr(node, f.name) != f.default
        }
    return [_plain(n) for n in node] if isinstance(node, tuple) else node


def _build(cls, tree, where):
    if not isinstance(tree, dict):
        raise DataError(f"{where} must be a mapping, is {type(tree).__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in tree:
        if key not in fields:
            raise DataError(f"{where} has an unknown key {key!r}", remedy=f"Known keys: {', '.join(fields)}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in tree:
            raise DataError(f"{where} lacks the key {name!r}")
    values = {}
    for key, value in tree.items():
        here = f"{where}.{key}"
        if key in _NESTED:
            if not isinstance(value, list):
                raise DataError(f"{here} must be a list, is {type(value).__name__}")
            values[key] = tuple(_build(_NESTED[key], v, f"{here}[{i}]") for i, v in enumerate(value))
        elif key == "domain" and value is not None:
            values[key] = _build(Domain, value, here)
        elif key == "values":
            if not isinstance(value, list) or len({type(v) for v in value} & {str, int}) != 1:
                raise DataError(f"{here} must be a list of strings or a list of integers")
            values[key] = tuple(value)
        else:
            values[key] = _scalar(fields[key].type, value, here)
    return cls(**values)


def _scalar(kind: str, value, where):
    """A leaf value checked against its annotation (a string, because of `from __future__ import annotations`)."""
    allowed = {"str": str, "bool": bool, "int": int, "float": (int, float)}
    names = [n.strip() for n in kind.split("|")]
    if value is None and "None" in names:
        return None
    for name in names:
        if name in allowed and isinstance(value, allowed[name]) and isinstance(value, bool) == (name == "bool"):
            return float(value) if name == "float" else value
    raise DataError(f"{where} must be {kind}, is {value!r}")
