import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faceter.data.errors import DataError
from faceter.data.files import find_files, read_footers
from faceter.data.testing_tables import full_table, write


def _table(rows, **more):
    return pa.table({"a": pa.array(range(rows), pa.int64()), **more})


def test_folder_is_all_files_below_it_sorted(tmp_path):
    for name in [
        "b/1.parquet",
        "a/2.parquet",
        "a/10.parquet",
        "_temporary/x.parquet",
        "a/.part.parquet",
        "a/notes.txt",
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(_table(1), tmp_path / name)
    files, names = find_files(tmp_path)
    assert names == ("a/10.parquet", "a/2.parquet", "b/1.parquet")
    assert files == tuple(tmp_path / n for n in names)
    assert find_files(str(files[0])) == ((files[0],), ("10.parquet",))
    assert find_files([files[2], files[0]]) == ((files[2], files[0]), ("1.parquet", "10.parquet"))


def test_footers(tmp_path):
    write(tmp_path, full_table(25), files=2, row_group_size=10)
    found = read_footers(tmp_path)
    assert found.num_rows == 25
    assert [(g.file, g.index, g.first_row, g.rows) for g in found.row_groups] == [
        (0, 0, 0, 10),
        (0, 1, 10, 2),
        (1, 0, 0, 10),
        (1, 1, 10, 3),
    ]


def test_fingerprint_follows_the_data_not_the_place(tmp_path):
    write(tmp_path / "a", full_table(25), files=2, row_group_size=10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write(tmp_path / "c", full_table(25), files=2, row_group_size=9)
    a, b, c = (read_footers(tmp_path / name).fingerprint for name in "abc")
    assert a == b != c


def test_empty_file_is_legal_among_others(tmp_path):
    pq.write_table(_table(0), tmp_path / "a.parquet")
    pq.write_table(_table(3), tmp_path / "b.parquet")
    found = read_footers(tmp_path)
    assert found.num_rows == 3
    assert [g.file for g in found.row_groups] == [1]


@pytest.mark.parametrize("as_file", [True, False])
def test_data_set_without_rows(tmp_path, as_file):
    file = tmp_path / "a.parquet"
    pq.write_table(_table(0), file)
    with pytest.raises(DataError, match="the data set has no rows") as caught:
        read_footers(file if as_file else tmp_path)
    assert caught.value.file == (file if as_file else tmp_path)


def test_paths_that_mean_nothing(tmp_path):
    with pytest.raises(DataError, match=r"no such file or folder \[file .*nowhere\]"):
        read_footers(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"the folder holds no \*.parquet file \[file "):
        read_footers(tmp_path)
    with pytest.raises(DataError, match=r"no such file \[file .*nowhere\]"):
        read_footers([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="the list of Parquet files is empty"):
        read_footers([])


def test_truncated_and_foreign_files(tmp_path):
    write(tmp_path, full_table(50))
    file = tmp_path / "part-00000.parquet"
    content = file.read_bytes()
    for text in (content[:-1], content[: len(content) // 2], content[:3], b"", b"a,b\n1,2\n" * 9):
        file.write_bytes(text)
        with pytest.raises(DataError, match="not a whole Parquet file") as caught:
            read_footers(tmp_path)
        assert caught.value.file == file
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "other, message",
    [
        (pa.table({"b": [1]}), "the column is in .*a.parquet but not here .*b.parquet, column a"),
        (_table(2, b=[1, 2]), "the column is not in .*a.parquet .*b.parquet, column b"),
        (pa.table({"a": ["x"]}), "the column is string here and int64 in .*a.parquet .*b.parquet, column a"),
        (pa.table({"a": pa.array([1], pa.int32())}), "the column is int32 here and int64"),
    ],
)
def test_files_that_differ_in_columns(tmp_path, other, message):
    pq.write_table(_table(2), tmp_path / "a.parquet")
    pq.write_table(other, tmp_path / "b.parquet")
    with pytest.raises(DataError, match=message):
        read_footers(tmp_path)


def test_order_of_columns_does_not_matter(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": [1], "a": [2]}), tmp_path / "b.parquet")
    assert read_footers(tmp_path).num_rows == 2
