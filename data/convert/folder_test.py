"""FolderWriter: everything or nothing, in row groups of one size."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faceter.data.convert.folder import FolderWriter
from faceter.data.errors import DataError
from faceter.data.schema import Label, Schema

SCHEMA = Schema("s", labels=(Label("y"),))


def rows(first, count):
    return pa.table({"y": pa.array(range(first, first + count), pa.int64())})


def write(out, **options):
    with FolderWriter(out, **options) as writer:
        writer.write("train", rows(0, 3))
        writer.finish(SCHEMA)


def test_rows_keep_their_order_over_row_groups_and_parts(tmp_path):
    with FolderWriter(tmp_path / "out", row_group_rows=4, row_groups_per_part=2) as writer:
        for first, count in ((0, 3), (3, 6), (9, 0), (9, 10)):
            writer.write("train", rows(first, count))
        writer.write("test", rows(0, 1))
        writer.finish(SCHEMA)
    parts = sorted((tmp_path / "out" / "train").iterdir())
    assert [p.name for p in parts] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    sizes = []
    for part in parts:
        meta = pq.read_metadata(part)
        sizes.append([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
    assert sizes == [[4, 4], [4, 4], [3]]
    assert pq.read_table(tmp_path / "out" / "train")["y"].to_pylist() == list(range(19))
    assert writer.rows == {"train": 19, "valid": 0, "test": 1}
    assert not (tmp_path / "out" / "valid").exists()
    assert Schema.load(tmp_path / "out") == SCHEMA


def write_and_fail(out, error, **options):
    with FolderWriter(out, row_group_rows=2, **options) as writer:
        writer.write("train", rows(0, 5))
        assert list(writer.folder.rglob("*.parquet"))
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_fault_in_the_middle_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        write_and_fail(tmp_path / "out", error)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_leaves_the_old_folder(tmp_path):
    write(tmp_path / "out")
    with pytest.raises(RuntimeError):
        write_and_fail(tmp_path / "out", RuntimeError, overwrite=True)
    assert pq.read_table(tmp_path / "out" / "train").num_rows == 3
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_is_there_is_kept_unless_asked(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    with pytest.raises(DataError, match=r"exists and is not empty \[file .*out\].*--overwrite"):
        write(tmp_path / "out")
    write(tmp_path / "out", overwrite=True)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["schema.yaml", "train"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is no folder"):
        write(tmp_path / "file", overwrite=True)
    with pytest.raises(DataError, match="can't write"):
        write(tmp_path / "file" / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "out"]
