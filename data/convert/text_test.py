"""Delimited text: errors name the line, blocks of any size give the same rows."""

import pyarrow as pa
import pytest

from faceter.data.convert.text import count_lines, read_header, read_text
from faceter.data.errors import DataError

TYPES = {"b": pa.float64(), "a": pa.int64()}


def read(path, **options):
    table = pa.Table.from_batches(list(read_text(path, "\t", TYPES, **options)))
    return table["a"].to_pylist(), table["b"].to_pylist()


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_reads_the_columns_asked_for_and_empty_is_null(tmp_path, block_bytes):
    path = tmp_path / "x.tsv"
    path.write_text("a\tother\tb\n" + "".join(f"{n}\t?\t{n / 2 if n % 3 else ''}\n" for n in range(50)))
    a, b = read(path, block_bytes=block_bytes)
    assert a == list(range(50))
    assert b == [n / 2 if n % 3 else None for n in range(50)]


def test_an_empty_line_is_a_row_of_nulls(tmp_path):
    # Skipped lines would shift the line numbers of every later error.
    path = tmp_path / "x.tsv"
    path.write_text("a\tb\n1\t2\n\n3\t4\n")
    assert read(path) == ([1, None, 3], [2.0, None, 4.0])


def test_names_take_the_place_of_a_header(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("1\t2.5\n3\t4\n")
    assert read(path, names=["a", "b"]) == ([1, 3], [2.5, 4.0])
    with pytest.raises(DataError, match="line 1 has 2 fields, expected 3"):
        read(path, names=["a", "b", "c"])


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
@pytest.mark.parametrize(
    "text, message",
    [
        ("a\tb\n1\t2\n3\t4\n5\n", r"line 4 has 1 fields, expected 2 \[file .*x.tsv\]"),
        ("a\tb\n1\t2\n3\t4\t5\n", r"line 3 has 3 fields, expected 2"),
        ("a\tb\n1\t2\n3\t4\nx\t4\n", r"line 4: .*int64.*'x' \[file .*x.tsv, column a\]"),
        ("a\tb\n1\t2,5\n", r"line 2: .*double.*'2,5' \[file .*x.tsv, column b\]"),
        ("a\tc\n1\t2\n", r"the header lacks a column \[file .*, column b\]. It has a, c"),
        ("\n1\t2\n", "the first line is empty"),
        ("", "the file is empty"),
    ],
)
def test_bad_text(tmp_path, text, message, block_bytes):
    path = tmp_path / "x.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path, block_bytes=block_bytes)


def test_missing_file_folder_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(DataError, match="Is a directory"):
        read(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match="line 1 is not UTF-8"):
        read_header(tmp_path / "x", "\t")


@pytest.mark.parametrize("text, lines", [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("a\n\n", 2)])
def test_count_lines(tmp_path, text, lines):
    (tmp_path / "x").write_text(text)
    assert count_lines(tmp_path / "x") == lines
