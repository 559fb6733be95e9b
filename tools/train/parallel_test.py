"""Two processes and one: the same numbers from the same rows, the same command, stopping and going on together."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from faceter.tools.train import testing_data
from faceter.tools.train import testing_forked as forked


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "tiny"
    # Row groups are dealt out in turn: two processes with batches of 32 read the rows of one with batches of 64.
    return testing_data.write_tiny(folder, train=384, other=64, row_group_rows=32)


def command(data, run, batch_size, *more):
    argv = [
        "--data",
        str(data),
        "--model",
        "tiny",
        "--out",
        str(run),
        "--gem.layers",
        "1",
        "--gem.events.0.layers",
        "1",
    ]
    argv += ["--shuffle-rows", "0", "--epochs", "2", "--log-every", "1", "--batch-size", str(batch_size)]
    return [*argv, "--ema-decay", "0.9", "--ema-tables", "--embedding-weight-decay", "0.1", *more]


def start_both(argv, output):
    port = forked.free_port()
    return [forked.server().train(argv, output, forked.torchrun_env(rank, 2, port)) for rank in range(2)]


def train_both(argv, output):
    for pid in start_both(argv, output):
        assert forked.server().wait(pid) == 0, output.read_text()


def losses(run):
    return [(r["step"], r["loss"]) for r in map(json.loads, (run / "log.jsonl").read_text().splitlines())]


def metrics(run):
    found = json.loads((run / "metrics.json").read_text())
    del found["time"], found["world_size"]
    return found


@pytest.fixture(scope="module")
def both(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    train_both(command(data, folder / "run", 32), folder / "out")
    return folder / "run"


def test_one_and_two_processes_agree(data, both, tmp_path):
    run, output = tmp_path / "run", tmp_path / "out"
    server = forked.server()
    assert server.wait(server.train(command(data, run, 64), output)) == 0, output.read_text()
    one, two = losses(run), losses(both)
    assert len(one) == len(two) == 12
    # The same sums of float32 in another order.
    for (step, a), (_, b) in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=1e-5), step
    assert one[0][1] != one[-1][1]
    first, second = metrics(run), metrics(both)
    for part in ("valid", "test"):
        a, b = first.pop(part)["click"]["all"], second.pop(part)["click"]["all"]
        assert a == pytest.approx(b, rel=1e-4), part
        assert a["rows"] == 64
    assert first == second


def test_only_one_process_prints(both):
    text = (both.parent / "out").read_text()
    assert text.count("step 12/12") == 1
    assert text.count("test part") == 1


def test_stopped_and_started_again(data, both, tmp_path):
    run, output = tmp_path / "run", tmp_path / "out"
    argv = command(data, run, 32, "--background", "--checkpoint-every", "2")
    pids = start_both(argv, output)
    while not ((run / "log.jsonl").exists() and len((run / "log.jsonl").read_text().splitlines()) >= 5):
        assert all(forked.server().code(pid) is None for pid in pids), output.read_text()
        time.sleep(0.002)
    os.kill(pids[1], signal.SIGTERM)  # one is told, both stop at the same step
    for pid in pids:
        assert forked.server().wait(pid) == 0, output.read_text()
    assert "stopped by a signal after step" in output.read_text()
    train_both(argv, output)
    assert "going on from" in output.read_text()
    assert losses(run) == losses(both)
    assert metrics(run) == metrics(both)


def test_checkpoint_of_another_number_of_processes(data, both, tmp_path):
    output = tmp_path / "out"
    server = forked.server()
    assert server.wait(server.train(command(data, both, 32), output)) == 2
    assert "world_size was 2, is 1" in output.read_text()


def test_torchrun(data, tmp_path):
    """The command of one process, under torchrun."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv += ["-m", "faceter.tools.train.main", *command(data, tmp_path / "run", 32, "--max-steps", "2")]
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["world_size"] == 2
