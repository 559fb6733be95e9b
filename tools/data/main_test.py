"""The command line: each converter end to end, inspect, check, exit codes, nothing half-written."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import criteo, synthetic
from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn
from faceter.tools.data.main import main

SCHEMA = Schema(
    "toy",
    labels=(Label("y"),),
    dense=(DenseColumn("x", fill=0.0),),
    sparse=(SparseColumn("item", 10),),
    sequences=(SequenceGroup("seen", ids=(SparseColumn("seen_item", 10, table="item"),)),),
)
SMALL = ["--rows", "300", "--eval-rows", "50", "--num-users", "40", "--num-ads", "30"]


def criteo_lines(count):
    return ["\t".join([str(n % 2), *["3"] * 13, *["ab"] * 26]) for n in range(count)]


def write_toy(folder, rows, split="train", **columns):
    """`rows` good rows, of which columns may be replaced."""
    (folder / split).mkdir(parents=True)
    good = {"y": [1, 0] * (rows // 2), "x": [0.5] * rows, "item": [3] * rows, "seen_item": [[1, 2]] * rows}
    pq.write_table(pa.table(good | columns), folder / split / "part-00000.parquet", row_group_size=4)
    SCHEMA.save(folder)
    return folder


def test_convert_then_inspect_and_check(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["convert", "synthetic", out, *SMALL]) == 0
    assert capsys.readouterr().out == f"{out}: synthetic, 300 train, 50 valid, 50 test rows\n"
    assert main(["check", out]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train: 0 bad rows of 300",
        "valid: 0 bad rows of 50",
        "test: 0 bad rows of 50",
    ]
    assert main(["inspect", out]) == 0
    text = capsys.readouterr().out
    rate = pq.read_table(tmp_path / "out" / "train")["click"].to_numpy().mean()
    assert "train: 300 rows, 1 row groups, 1 files, " in text
    assert f"click {rate:.4g}" in text
    for column in synthetic.schema(synthetic.SyntheticConfig()).columns:
        assert f"\n{column} " in text


def test_inspect_numbers_extra_columns_and_bad_rows(tmp_path, capsys):
    write_toy(
        tmp_path / "d",
        8,
        x=[None, 2.5, None, 1.0, -7.25, 0.0, 0.0, 0.0],
        seen_item=[[], [1], None, [1, 2, 3, 4], [1], [1], [10], [-1]],
        note=["hello"] * 8,
    )
    assert main(["inspect", str(tmp_path / "d")]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert "train: 8 rows, 2 row groups, 1 files, " in text
    assert "label rates: y 0.5" in text
    #                         role    type      nulls min     max    mean   distinct
    assert lines["x"] == ["x", "dense", "double", "2", "-7.25", "2.5", "-0.625", "4"]
    assert lines["seen_item"][1:] == [
        *("seen:", "id,", "table", "item", "(10)", "list<int64>"),
        *("1", "-1", "10", "2.444", "6", "1", "4", "4", "4"),
    ]
    assert "not in the schema, never read: note" in text
    assert "train: 2 bad rows of 8" in text
    assert "  2: id outside [0, 10) [file " in text


def test_check_names_the_first_bad_row_or_counts_them(tmp_path, capsys):
    folder = write_toy(tmp_path / "d", 8, item=[1, 2, 3, 4, 5, 60, 7, 8])
    assert main(["check", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("faceter data: id outside [0, 10): 60 [file ")
    assert "row group 1, row 5, column item]" in error
    assert error.count("\n") == 1
    assert main(["check", str(folder), "--on-bad-row", "skip"]) == 0
    text = capsys.readouterr().out
    assert "train: 1 bad rows of 8\n  1: id outside [0, 10) [file " in text


def test_a_folder_of_parquet_with_its_own_schema_file(tmp_path, capsys):
    folder = write_toy(tmp_path / "d", 4)
    (folder / "schema.yaml").rename(tmp_path / "roles.yaml")
    files = folder / "train"
    assert main(["check", str(files), "--schema", str(tmp_path / "roles.yaml")]) == 0
    assert capsys.readouterr().out == "all: 0 bad rows of 4\n"
    assert main(["check", str(files / "part-00000.parquet"), "--schema", str(tmp_path / "roles.yaml")]) == 0
    assert main(["check", str(files)]) == 2
    assert "no schema" in capsys.readouterr().err


def break_file(folder):
    path = folder / "train" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-30])


def break_pages(folder):
    path = folder / "train" / "part-00000.parquet"
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)


@pytest.mark.parametrize("command", ["inspect", "check"])
@pytest.mark.parametrize(
    "damage, message",
    [
        (break_file, "not a whole Parquet file"),
        (break_pages, "can't read the row group"),
        (lambda folder: (folder / "train" / "part-00000.parquet").unlink(), "holds no *.parquet file"),
        (lambda folder: (folder / "schema.yaml").write_text("name: x\nlabels: 3"), "schema.labels must be a list"),
    ],
)
def test_broken_data_sets(tmp_path, capsys, command, damage, message):
    folder = write_toy(tmp_path / "d", 8)
    damage(folder)
    assert main([command, str(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_other_converters_end_to_end(tmp_path, capsys):
    (tmp_path / "day.tsv").write_text("\n".join(criteo_lines(20)))
    (tmp_path / "shop.csv").write_text("y,x,item,seen_item\n" + "1,2,3,1^2\n0,,4,\n" * 5)
    (tmp_path / "roles.yaml").write_text(SCHEMA.to_yaml())
    (tmp_path / "rb").mkdir()
    inter = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "u\ti\t5\t7\n" * 10
    (tmp_path / "rb" / "x.inter").write_text(inter)
    for number, arguments in enumerate(
        (
            ["criteo", str(tmp_path / "day.tsv"), "OUT", "--num-embeddings", "9"],
            ["packed-csv", str(tmp_path / "shop.csv"), "OUT", "--schema", str(tmp_path / "roles.yaml")],
            ["recbole", str(tmp_path / "rb"), "OUT", "--positive-from", "4"],
        )
    ):
        out = str(tmp_path / f"out{number}")
        assert main(["convert", *[out if a == "OUT" else a for a in arguments]]) == 0
        assert main(["check", out]) == 0
    text = capsys.readouterr().out
    assert "criteo, 16 train, 2 valid, 2 test rows" in text
    assert "toy, 8 train, 1 valid, 1 test rows" in text
    assert "x, 8 train, 1 valid, 1 test rows" in text


def test_a_fault_in_the_middle_leaves_no_folder(tmp_path, capsys):
    # The last line is wrong, after more rows than a row group holds: files were being written by then.
    (tmp_path / "day.tsv").write_text("\n".join([*criteo_lines(60_000), "1\t2"]))
    writes = []

    class Spy(criteo.FolderWriter):
        def _write_group(self, split, table):
            super()._write_group(split, table)
            writes.append(split)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(criteo, "FolderWriter", Spy)
        assert main(["convert", "criteo", str(tmp_path / "day.tsv"), str(tmp_path / "out")]) == 2
    assert writes
    error = capsys.readouterr().err
    assert error.startswith("faceter data: line 60001 has 2 fields, expected 40 [file ")
    assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["day.tsv"]


def test_what_is_there_is_kept(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["convert", "synthetic", out, *SMALL]) == 0
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "out").rglob("*"))
    assert main(["convert", "synthetic", out, *SMALL]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "out").rglob("*")) == before
    assert main(["convert", "synthetic", out, *SMALL, "--overwrite"]) == 0


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--help"], 0),
        (["convert", "ml100k", "--help"], 0),
        ([], 2),
        (["convert"], 2),
        (["convert", "nonsense"], 2),
        (["check", "x", "--on-bad-row", "ignore"], 2),
        (["check"], 2),
    ],
)
def test_usage(arguments, code, capsys):
    assert main(arguments) == code


def test_as_a_program_of_its_own(tmp_path):
    program = [sys.executable, sys.modules[main.__module__].__file__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [*program, "check", "none"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == "faceter data: no such file or folder [file none]\n"
