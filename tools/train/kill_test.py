"""`kill -9` anywhere, then the same command again: the run ends as the uninterrupted one, bit for bit."""

import json
import os
import random
import signal
import time

import pytest

from faceter.tools.train import testing_data
from faceter.tools.train import testing_forked as forked

STEPS = 40
KILLS = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return testing_data.write_tiny(tmp_path_factory.mktemp("data") / "tiny")


def command(data, run, *more):
    argv = ["--data", str(data), "--model", "tiny", "--out", str(run), "--batch-size", "32", "--shuffle-rows", "128"]
    argv += [
        "--epochs",
        "4",
        "--warmup-steps",
        "10",
        "--gem.layers",
        "1",
        "--gem.dropout",
        "0.2",
        "--gem.events.0.layers",
        "1",
    ]
    argv += [
        "--ema-decay",
        "0.9",
        "--ema-tables",
        "--embedding-weight-decay",
        "0.1",
        "--decay",
        "cosine",
        "--evaluate-every",
        "20",
        "--checkpoint-every",
        "12",
        "--keep",
        "2",
    ]
    return [*argv, "--log-every", "1", *more]


def outcome(run):
    """What must be the same: per-step figures and final metrics, without times."""
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    curve = [(r["step"], r["loss"].hex(), r["auc"] and r["auc"].hex(), r["ne"] and r["ne"].hex()) for r in log]
    metrics = json.loads((run / "metrics.json").read_text())
    del metrics["time"]
    return curve, metrics


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    output, server = run.parent / "out", forked.server()
    pid, started = server.train(command(data, run), output), time.monotonic()
    assert server.wait(pid) == 0, output.read_text()
    curve, metrics = outcome(run)
    assert [step for step, *_ in curve] == list(range(1, STEPS + 1))
    assert len({loss for _, loss, *_ in curve}) > STEPS // 2
    return curve, metrics, time.monotonic() - started


def logged_steps(run):
    path = run / "log.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_and_started_again(number, data, uninterrupted, tmp_path):
    curve, metrics, seconds = uninterrupted
    rng = random.Random(number)
    run, output = tmp_path / "run", tmp_path / "out"
    # Some with reader workers, some with checkpoints written in the background.
    more = [[], ["--workers", "1"], ["--background"], []][number % 4]
    argv = command(data, run, *more)
    kind = ("step", "time", "writing")[number % 3]
    step, moment = rng.randrange(1, STEPS), rng.random() * seconds
    server = forked.server()
    pid, started = server.train(argv, output), time.monotonic()
    while server.code(pid) is None:
        if kind == "step" and logged_steps(run) >= step:
            break
        if kind == "time" and time.monotonic() - started > moment:
            break
        if kind == "writing" and logged_steps(run) >= step and list((run / "checkpoints").glob(".*.partial")):
            break
        time.sleep(0.002)
    if server.code(pid) is None:
        os.kill(pid, signal.SIGKILL)
    assert server.wait(pid) in (-signal.SIGKILL, 0), output.read_text()
    assert server.wait(server.train(argv, output)) == 0, output.read_text()
    assert outcome(run) == (curve, metrics), output.read_text()
