"""Criteo: both layouts, missing values, the split, bad lines."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import criteo
from faceter.data.convert.hashing import hash_ids
from faceter.data.errors import DataError
from faceter.data.schema import Schema


def lines(count):
    """Rows in the format, with missing fields, as lists of strings; the first integer is the row's number."""
    rng = np.random.default_rng(0)
    out = []
    for n in range(count):
        integers = [str(n)] + ["" if rng.random() < 0.3 else str(rng.integers(-2, 900)) for _ in range(12)]
        categories = ["" if rng.random() < 0.2 else f"{rng.integers(0, 99):08x}" for _ in range(26)]
        out.append([str(rng.integers(0, 2)), *integers, *categories])
    return out


def write_tsv(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


@pytest.mark.parametrize("block_bytes", [400, 4 << 20])
def test_tsv(tmp_path, block_bytes):
    rows = lines(100)
    write_tsv(tmp_path / "day.tsv", rows)
    schema = criteo.convert(tmp_path / "out", tmp_path / "day.tsv", num_embeddings=50, block_bytes=block_bytes)
    assert schema == Schema.load(tmp_path / "out")
    assert schema.tables == {f"C{n}": 50 for n in range(1, 27)}
    parts = {name: pq.read_table(tmp_path / "out" / name) for name in ("train", "valid", "test")}
    assert {name: part["I1"].to_pylist() for name, part in parts.items()} == {
        "train": list(range(80)),
        "valid": list(range(80, 90)),
        "test": list(range(90, 100)),
    }
    for n, row in enumerate(parts["train"].to_pylist()):
        assert row["label"] == int(rows[n][0])
        for k in range(1, 14):
            assert row[f"I{k}"] == (float(rows[n][k]) if rows[n][k] else None)
        for k in range(1, 27):
            assert row[f"C{k}"] == hash_ids(pa.array([rows[n][13 + k]]), 50)[0]
            assert (row[f"C{k}"] == 0) == (rows[n][13 + k] == "")
    x = np.array([float(r[2]) if r[2] else 0.0 for r in rows[:80]])
    x = np.sign(x) * np.log1p(np.abs(x))
    assert schema.dense[1].mean == pytest.approx(x.mean(), abs=1e-5)
    assert schema.dense[1].std == pytest.approx(x.std(), abs=1e-5)


def test_csv_with_a_header_gives_the_same(tmp_path):
    rows = lines(40)
    write_tsv(tmp_path / "day.tsv", rows)
    header = ["Id", "Label", *criteo.INTEGERS, *criteo.CATEGORIES]
    table = [header] + [[str(10**7 + n), *row] for n, row in enumerate(rows)]
    (tmp_path / "day.csv").write_text("".join(",".join(row) + "\n" for row in table))
    one = criteo.convert(tmp_path / "one", tmp_path / "day.tsv")
    two = criteo.convert(tmp_path / "two", tmp_path / "day.csv")
    assert one == two
    for split in ("train", "valid", "test"):
        assert pq.read_table(tmp_path / "one" / split).equals(pq.read_table(tmp_path / "two" / split))


def broken(rows, line, field, value):
    rows[line - 1][field] = value
    return rows


@pytest.mark.parametrize(
    "rows, message",
    [
        ([*lines(9)[:-1], ["1", "2"]], r"line 9 has 2 fields, expected 40 \[file .*day.tsv\]"),
        (broken(lines(9), 7, 0, "2"), r"line 7: the label is 2, not 0 or 1 \[file .*, column label\]"),
        (broken(lines(9), 7, 0, ""), r"line 7: the label is None"),
        (broken(lines(9), 8, 0, "yes"), r"line 8: .*'yes' \[file .*, column label\]"),
        (broken(lines(9), 9, 3, "ten"), r"line 9: .*'ten' \[file .*, column I3\]"),
        ([["1"] * 39], r"line 1 has 39 fields, expected 40.*13 integers, 26 categories"),
        ([], "the file is empty"),
    ],
)
@pytest.mark.parametrize("block_bytes", [400, 4 << 20])
def test_bad_lines_leave_nothing(tmp_path, rows, message, block_bytes):
    write_tsv(tmp_path / "day.tsv", rows)
    with pytest.raises(DataError, match=message):
        criteo.convert(tmp_path / "out", tmp_path / "day.tsv", block_bytes=block_bytes)
    assert [p.name for p in tmp_path.iterdir()] == ["day.tsv"]


def test_bad_header_missing_file_and_bad_options(tmp_path):
    path = tmp_path / "day.csv"
    header = ["Id", "Label", *criteo.INTEGERS, *criteo.CATEGORIES]
    for wrong, message in (([*header[:-2], "C26"], "C25"), (header[2:], "lacks the column Label")):
        path.write_text(",".join(wrong) + "\n" + ",".join("1" * len(wrong)) + "\n")
        with pytest.raises(DataError, match=message):
            criteo.convert(tmp_path / "out", path)
    path.write_text(",".join(header) + "\n")
    with pytest.raises(DataError, match="header and no rows"):
        criteo.convert(tmp_path / "out", path)
    with pytest.raises(DataError, match="No such file"):
        criteo.convert(tmp_path / "out", tmp_path / "none")
    with pytest.raises(DataError, match="at least 2"):
        criteo.convert(tmp_path / "out", path, num_embeddings=1)
    assert not (tmp_path / "out").exists()


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    write_tsv(tmp_path / "day.tsv", lines(500) * 160)
    allocated = []

    class Spy(criteo.FolderWriter):
        def _write_group(self, split, table):
            super()._write_group(split, table)
            allocated.append(pa.total_allocated_bytes())

    monkeypatch.setattr(criteo, "FolderWriter", Spy)
    before = pa.total_allocated_bytes()
    criteo.convert(tmp_path / "out", tmp_path / "day.tsv", block_bytes=1 << 16)
    assert len(allocated) >= 9
    rows = pq.read_table(tmp_path / "out" / "train").nbytes
    # One row group of 8,192 rows, its copy, and the blocks read ahead; never the 64,000 rows.
    assert max(allocated) - before < rows / 2
