"""The reader's memory does not grow with the file: peaks of numpy (tracemalloc) and of pyarrow's pool."""

import gc
import tracemalloc

import pyarrow as pa
import pytest

from faceter.data.reader import ParquetReader
from faceter.data.testing_tables import full_schema, full_table, write


@pytest.fixture(autouse=True)
def one_arrow_thread():
    # With several, the peak of one row group depends on how many columns happen to be decoded at the same moment.
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    yield
    pa.set_cpu_count(before)


def _peak(folder, **options):
    """Peak bytes while one epoch is read, over what there was before."""
    gc.collect()
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)  # counts from zero
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        with ParquetReader(folder, full_schema(), 500, **options) as reader:
            batches = sum(1 for _ in reader.epoch())
        numpy, arrow = tracemalloc.get_traced_memory()[1], pool.max_memory()
        assert arrow > 0
        return numpy + arrow, batches
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(default)


@pytest.mark.parametrize("options", [{}, {"shuffle_rows": 2000}], ids=["file order", "shuffled"])
def test_peak_is_the_same_for_a_file_eight_times_as_long(tmp_path, options):
    # Row groups of some megabytes, so that what the plan of an epoch takes per row group does not show.
    table = pa.concat_tables([full_table(1000)] * 8)
    short = write(tmp_path / "short", table, row_group_size=2000)
    long = write(tmp_path / "long", pa.concat_tables([table] * 8), row_group_size=2000)
    _peak(short, **options)  # whatever is imported or made once
    small, few = _peak(short, **options)
    large, many = _peak(long, **options)
    assert (few, many) == (16, 128)
    assert large < 1.25 * small
