"""What `inspect` and `check` print."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from faceter.data.schema import Schema
from faceter.tools.data.scan import Scan
from faceter.tools.data.summary import ColumnSummary, roles


def _short(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _line(console: Console, text: str) -> None:
    # As it is: file names may hold what rich would take for markup, and are not to be folded.
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_split(console: Console, name: str, scan: Scan, schema: Schema, columns: dict[str, ColumnSummary]) -> None:
    """One part of a data set: its size, label rates, bad rows, and a table of its columns."""
    files = scan.files
    size = sum(f.stat().st_size for f in files.files)
    rates = ", ".join(f"{label.name} {_short(columns[label.name].mean)}" for label in schema.labels)
    _line(
        console,
        f"{name}: {files.num_rows:,} rows, {len(files.row_groups):,} row groups, "
        f"{len(files.files):,} files, {size:,} bytes; label rates: {rates}",
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("column", no_wrap=True)
    table.add_column("role")
    table.add_column("type")
    for head in ("nulls", "min", "max", "mean", "distinct", "length p50", "p90", "p99", "max"):
        table.add_column(head, justify="right")
    for column, role in roles(schema).items():
        summary = columns[column]
        lengths = ["", "", "", ""]
        if summary.lengths is not None:
            lengths = [f"{summary.length_quantile(q):,}" for q in (0.5, 0.9, 0.99, 1.0)]
        numbers = [_short(v) for v in (summary.nulls, summary.low, summary.high, summary.mean, summary.distinct)]
        kind = str(files.schema.field(column).type).replace("element: ", "").replace("item: ", "")
        table.add_row(escape(column), escape(role), escape(kind), *numbers, *lengths)
    console.print(table)
    if scan.extra:
        _line(console, f"not in the schema, never read: {', '.join(scan.extra)}")
    print_bad_rows(console, name, scan.bad, files.num_rows)


def print_bad_rows(console: Console, name: str, bad: Counter[tuple[str, str, str]], num_rows: int) -> None:
    """Counts of bad rows, by file, column and problem."""
    _line(console, f"{name}: {sum(bad.values()):,} bad rows of {num_rows:,}")
    for (file, column, problem), count in sorted(bad.items()):
        _line(console, f"  {count:,}: {problem} [file {file}, column {column}]")
