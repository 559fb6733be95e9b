"""Converts data sets to Parquet with a schema, inspects and checks them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg
from tyro.extras import SubcommandApp

from faceter.data.convert import criteo, ml100k, packed_csv, recbole, synthetic
from faceter.data.errors import DataError
from faceter.data.schema import Schema
from faceter.tools.data.report import print_bad_rows, print_split
from faceter.tools.data.scan import Scan, find_splits, load_schema
from faceter.tools.data.summary import ColumnSummary
from faceter.tools.launch import run

app = SubcommandApp()
convert = SubcommandApp()
app.command(convert, name="convert", help="Write a data set folder from another format.")

Source = Annotated[Positional[Path], arg(metavar="SOURCE")]
Out = Annotated[Positional[Path], arg(metavar="OUT")]
Columns = Annotated[tuple[str, ...], arg(metavar="COLUMN...")]

_SYNTHETIC = synthetic.SyntheticConfig()


def _console() -> Console:
    # Into a pipe or file, rich would fold a wide table at 80 columns.
    return Console() if sys.stdout.isatty() else Console(width=200)


def _say(out: Path, schema: Schema) -> None:
    counts = {name: Scan(path, schema, skip=False).files.num_rows for name, path in find_splits(out).items()}
    print(f"{out}: {schema.name}, " + ", ".join(f"{count:,} {name}" for name, count in counts.items()) + " rows")


@convert.command(name="ml100k")
def convert_ml100k(out: Out, /, source: Path | None = None, overwrite: bool = False) -> None:
    """MovieLens-100K from the installed recbole package.

    Args:
        out: folder to make.
        source: folder with ml-100k.inter, .user and .item in place of the package's.
        overwrite: replace the folder if it is there.
    """
    _say(out, ml100k.convert(out, source, overwrite=overwrite))


@convert.command(name="criteo")
def convert_criteo(
    source: Source,
    out: Out,
    /,
    num_embeddings: int = 100_000,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    overwrite: bool = False,
) -> None:
    """Criteo's display advertising data: TSV without a header, or CSV with one.

    Args:
        source: the file.
        out: folder to make.
        num_embeddings: rows of each category's table, into which its values are hashed.
        valid_fraction: share of the rows, before the test part, for validation.
        test_fraction: share of the rows, at the end, for the test.
        overwrite: replace the folder if it is there.
    """
    schema = criteo.convert(
        out,
        source,
        num_embeddings=num_embeddings,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        overwrite=overwrite,
    )
    _say(out, schema)


@convert.command(name="packed-csv")
def convert_packed_csv(
    source: Source,
    out: Out,
    /,
    schema: Path,
    delimiter: str = ",",
    list_separator: str = "^",
    hashed: Columns = (),
    lists: Columns = (),
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    overwrite: bool = False,
) -> None:
    """CSV with a header whose histories are packed into one field, like `3^17^5`.

    Args:
        source: the file.
        out: folder to make.
        schema: YAML file with the columns' roles.
        delimiter: character between fields.
        list_separator: what is between the elements of a packed list.
        hashed: id columns of strings, which are hashed.
        lists: id columns outside the sequence groups that hold packed lists.
        valid_fraction: share of the rows, before the test part, for validation.
        test_fraction: share of the rows, at the end, for the test.
        overwrite: replace the folder if it is there.
    """
    result = packed_csv.convert(
        out,
        source,
        Schema.load(schema),
        delimiter=delimiter,
        list_separator=list_separator,
        hashed=hashed,
        lists=lists,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        overwrite=overwrite,
    )
    _say(out, result)


@convert.command(name="recbole")
def convert_recbole(
    source: Source,
    out: Out,
    /,
    label: str = "rating",
    positive_from: float | None = None,
    user: str = "user_id",
    item: str = "item_id",
    timestamp: str = "timestamp",
    leave_out: Columns = (),
    max_history: int = 200,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    overwrite: bool = False,
) -> None:
    """A data set in RecBole's atomic files.

    Args:
        source: folder with NAME.inter and, if there are, NAME.user and NAME.item.
        out: folder to make.
        label: float column of the interactions that is the label.
        positive_from: smallest value that counts as positive; without it the column holds 0 and 1.
        user: column with the user.
        item: column with the item.
        timestamp: column with the time in seconds.
        leave_out: columns that are not wanted.
        max_history: newest events that a history keeps.
        valid_fraction: share of the rows, before the test part in time, for validation.
        test_fraction: share of the rows, the latest, for the test.
        overwrite: replace the folder if it is there.
    """
    schema = recbole.convert(
        out,
        source,
        label=label,
        positive_from=positive_from,
        user=user,
        item=item,
        timestamp=timestamp,
        leave_out=leave_out,
        max_history=max_history,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        overwrite=overwrite,
    )
    _say(out, schema)


@convert.command(name="synthetic")
def convert_synthetic(
    out: Out,
    /,
    config: OmitArgPrefixes[synthetic.SyntheticConfig] = _SYNTHETIC,
    overwrite: bool = False,
) -> None:
    """Generated ads data of any size with a known best NE (in synthetic.json).

    Args:
        out: folder to make.
        config: what is generated.
        overwrite: replace the folder if it is there.
    """
    _say(out, synthetic.convert(out, config, overwrite=overwrite))


@app.command(name="inspect")
def inspect(path: Positional[Path], /, schema: Path | None = None) -> None:
    """Show what a data set holds: sizes, label rates, bad rows, and each column's role and statistics.

    Args:
        path: data set folder, or a folder or file of Parquet.
        schema: schema file, if it is not schema.yaml in the folder.
    """
    roles, console = load_schema(path, schema), _console()
    for name, split in find_splits(path).items():
        scan = Scan(split, roles, skip=True)
        columns = {column: ColumnSummary(scan.files.schema.field(column).type) for column in roles.columns}
        for table in scan.tables():
            for column, summary in columns.items():
                summary.add(table[column])
        print_split(console, name, scan, roles, columns)


@app.command(name="check")
def check(
    path: Positional[Path], /, schema: Path | None = None, on_bad_row: Literal["raise", "skip"] = "raise"
) -> None:
    """Read everything as the trainer's reader would, and report bad rows.

    Args:
        path: data set folder, or a folder or file of Parquet.
        schema: schema file, if it is not schema.yaml in the folder.
        on_bad_row: stop at the first bad row (exit code 2), or count them.
    """
    roles, console = load_schema(path, schema), _console()
    for name, split in find_splits(path).items():
        scan = Scan(split, roles, skip=on_bad_row == "skip")
        for _ in scan.tables():
            pass
        print_bad_rows(console, name, scan.bad, scan.files.num_rows)


def main(argv: list[str] | None = None) -> int:
    """Run one command: 0 if all is well, 2 after a usage error or a fault in the data."""
    try:
        app.cli(prog="faceter data", args=argv, config=(FlagCreatePairsOff,))
    except DataError as error:
        print(f"faceter data: {error}", file=sys.stderr)
        return 2
    except SystemExit as stop:  # tyro: --help, or a usage error that it has printed
        return stop.code if isinstance(stop.code, int) else 2
    return 0


if __name__ == "__main__":
    run(main)
