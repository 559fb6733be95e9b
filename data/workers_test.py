import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from faceter.data.errors import DataError
from faceter.data.reader import ParquetReader
from faceter.data.testing_tables import full_schema, full_table, write
from faceter.data.workers import WorkerError, _Segments


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("data"), full_table(2000), files=4, row_group_size=50)
    full_schema().save(path)
    return path


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def _gone(pids, seconds):
    """True if the processes end in time (a zombie has not ended)."""
    for _ in range(int(seconds / 0.05)):
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _start(folder):
    before = set(_children(os.getpid()))
    reader = ParquetReader(folder, full_schema(), 8, workers=2)
    passing = reader.epoch()
    next(passing)
    workers = sorted(set(_children(os.getpid())) - before)
    assert len(workers) == 2
    return reader, passing, workers


def test_a_segment_is_used_again_when_nobody_holds_it():
    used = np.zeros(2, np.uint8)
    segments = _Segments(used)
    (first, slot), array = segments.take(1000)
    assert (slot, len(array)) == (0, 1250)
    assert segments.take(1250)[0] == (first, 0)  # not handed out yet: a fault came between
    used[0] = 1
    (second, slot), _ = segments.take(10)
    assert slot == 1
    assert second is not first
    used[1] = 1
    assert segments.take(10)[0][1] == -1  # more than it may keep
    used[0] = 0
    assert segments.take(1000)[0] == (first, 0)
    (larger, slot), _ = segments.take(2000)
    assert slot == 0
    assert larger.numel() == 2500


def test_batches_that_are_held_stay_as_they_were(folder):
    held = []
    with ParquetReader(folder, full_schema(), 8, workers=2) as reader:
        for number, batch in enumerate(reader.epoch()):
            if number % 7 == 0:
                tensors = [batch.dense, batch.labels, batch.sparse.values(), batch.sequence_ids.values()]
                held.append((tensors, [x.clone() for x in tensors]))
    assert len(held) > 30
    for tensors, copies in held:
        assert all(map(torch.equal, tensors, copies))


def test_no_process_is_left_after_the_epoch(folder):
    _, passing, workers = _start(folder)
    assert sum(1 for _ in passing) == 249
    assert _gone(workers, 2)


def test_no_process_is_left_after_leaving_early(folder):
    reader, passing, workers = _start(folder)
    del passing
    assert _gone(workers, 2)
    reader, _passing, workers = _start(folder)  # the pass is still held
    reader.close()
    assert _gone(workers, 2)


def test_no_process_is_left_after_an_exception_in_the_loop(folder):
    found = []

    def train():
        _, passing, workers = _start(folder)
        found.extend(workers)
        for _ in passing:
            raise FloatingPointError

    with pytest.raises(FloatingPointError):
        train()
    gc.collect()
    assert _gone(found, 2)


def test_no_process_is_left_after_a_data_error(tmp_path):
    table = full_table(2000)
    clicks = table.column("click").to_pylist()
    clicks[1990] = None
    write(tmp_path, table.set_column(0, "click", [clicks]), row_group_size=50)
    _, passing, workers = _start(tmp_path)
    with pytest.raises(DataError) as caught:
        list(passing)
    assert (caught.value.row, caught.value.row_group, caught.value.column) == (1990, 39, "click")
    assert _gone(workers, 2)  # though `caught` holds the frames


def test_killed_worker_is_reported_where_batches_are_asked_for(folder):
    _, passing, workers = _start(folder)
    handler = signal.getsignal(signal.SIGCHLD)
    os.kill(workers[0], signal.SIGKILL)
    time.sleep(0.2)  # no exception here, where a trainer may be writing a checkpoint
    with pytest.raises(WorkerError, match=r"a reader worker died .*use fewer workers"):
        list(passing)
    assert _gone(workers, 2)
    assert signal.getsignal(signal.SIGCHLD) == handler == signal.SIG_DFL


# Not through ParquetReader: to import torchrec takes as long as all the rest.
_SCRIPT = """
import sys
from faceter.data.blocks import BlockReader, Task
from faceter.data.files import read_footers
from faceter.data.plan import Segment, blocks
from faceter.data.schema import Schema
from faceter.data.workers import read_with_workers

files = read_footers(sys.argv[1])
segments = [Segment(i, 0, group.rows) for i, group in enumerate(files.row_groups)]
tasks = [Task(block, 0) for block in blocks(segments, 32, 250, 8)]
options = dict(rank=0, seed=0, shuffle=False, sub_batch=0, skip_bad=False, threads=False)
try:
    while True:
        for chunk in read_with_workers(BlockReader(files, Schema.load(sys.argv[1]), **options), tasks, 2):
            print("batch", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
"""


def _run(script, folder):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as from a terminal: the signal reaches the whole group
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_process_is_left_when_the_parent_is_stopped(folder, number):
    process = _run(_SCRIPT, folder)
    assert process.stdout.readline() == "batch\n"
    workers = _children(process.pid)
    assert len(workers) == 2
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert out.endswith("interrupted\n")
        assert "Traceback" not in errors
    assert _gone(workers, 15)


def test_no_process_is_left_when_the_parent_is_killed_before_its_workers_have_started(folder):
    late = "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(2))\n"
    process = _run(late + _SCRIPT, folder)
    while len(workers := _children(process.pid)) < 2:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=30)
    assert _gone(workers, 15)
