"""Whole runs of the tiny model, in forked children: results, stopping, going on, wrong input, non-finite losses."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from faceter.tools.train import loop, testing_data
from faceter.tools.train import testing_forked as forked
from faceter.tools.train.config import parse
from faceter.tools.train.evaluate import Interrupted


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return testing_data.write_tiny(tmp_path_factory.mktemp("data") / "tiny")


def command(data, run, *more):
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
    return [*argv, "--batch-size", "64", "--epochs", "2", "--log-every", "1", *more]


def train(tmp_path, argv):
    """Exit code and output of a run."""
    output = tmp_path / "out"
    output.unlink(missing_ok=True)
    server = forked.server()
    code = server.wait(server.train(argv, output))
    return code, output.read_text()


def log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def losses(run):
    return [(r["step"], r["loss"].hex()) for r in log(run)]


def metrics(run):
    found = json.loads((run / "metrics.json").read_text())
    del found["time"]
    return found


@pytest.fixture(scope="module")
def plain_run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    code, text = train(folder, command(data, folder / "run"))
    assert code == 0, text
    return folder / "run", text


def test_what_a_run_leaves(plain_run, data, tmp_path):
    run, text = plain_run
    assert {p.name for p in run.iterdir()} == {"config.yaml", "log.jsonl", "metrics.json", "checkpoints", "tensorboard"}
    found = metrics(run)
    assert found["steps"] == 10
    assert found["rows"] == 640
    assert set(found["test"]) == {"click", "buy"}
    assert set(found["test"]["click"]) == {"all", "feed", "story", "search"}
    assert set(found["test"]["click"]["all"]) == {"rows", "base_rate", "logloss", "ne", "auc", "calibration"}
    assert found["test"]["click"]["all"]["rows"] == 64
    assert "step 10/10 epoch 2/2 loss 0." in text
    assert "test part, weights of step" in text
    # The same again from the configuration that the run has written.
    again = tmp_path / "again"
    code, text = train(tmp_path, ["--config", str(run / "config.yaml"), "--out", str(again)])
    assert code == 0, text
    assert (losses(again), metrics(again)) == (losses(run), metrics(run))


def test_another_seed_is_another_run(plain_run, data, tmp_path):
    code, text = train(tmp_path, command(data, tmp_path / "run", "--seed", "1"))
    assert code == 0, text
    assert losses(tmp_path / "run")[0] != losses(plain_run[0])[0]


def test_started_again_after_its_end(plain_run, data, tmp_path):
    run, _ = plain_run
    before = (losses(run), metrics(run))
    code, text = train(tmp_path, command(data, run))
    assert code == 0
    assert "which is the last" in text
    assert (losses(run), metrics(run)) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_ends_well(plain_run, data, tmp_path, number):
    run, output = tmp_path / "run", tmp_path / "out"
    server = forked.server()
    pid = server.train(command(data, run), output)
    while not ((run / "log.jsonl").exists() and len((run / "log.jsonl").read_text().splitlines()) >= 3):
        assert server.code(pid) is None, output.read_text()
        time.sleep(0.002)
    os.kill(pid, number)
    assert server.wait(pid) == 0, output.read_text()
    assert "stopped by a signal after step" in output.read_text()
    assert not (run / "metrics.json").exists()
    (saved,) = (run / "checkpoints").iterdir()
    code, text = train(tmp_path, command(data, run))
    assert code == 0, text
    assert f"going on from {saved}" in text
    assert (losses(run), metrics(run)) == (losses(plain_run[0]), metrics(plain_run[0]))


def test_signal_in_the_last_evaluation(data, tmp_path, monkeypatch):
    """The model has the best weights by then: they must not be saved as the last ones."""
    argv = ["--evaluate-every", "1"]
    code, text = train(tmp_path, command(data, tmp_path / "whole", *argv, "--epochs", "3"))
    assert code == 0, text
    found = metrics(tmp_path / "whole")

    def evaluate(model, reader, *rest):
        if "test" in str(reader._files.files[0].parent.name):
            raise Interrupted
        return whole(model, reader, *rest)

    whole = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", evaluate)
    argv = command(data, tmp_path / "run", *argv)
    assert loop.run(parse(argv)[0]) is None
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "step-10" / "manifest.json").read_text())
    assert manifest["best_step"] != 10  # else this would test nothing
    code, text = train(tmp_path, [*argv, "--epochs", "3"])
    assert code == 0, text
    assert "going on from" in text
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert metrics(tmp_path / "run") == found


def test_early_stopping_and_best_weights(data, tmp_path):
    run = tmp_path / "run"
    # With no learning at all, the second evaluation is no better than the first.
    argv = command(
        data, run, "--patience", "1", "--dense-lr", "0", "--embedding-lr", "0", "--epochs", "5", "--keep", "1"
    )
    code, text = train(tmp_path, argv)
    assert code == 0, text
    found = metrics(run)
    assert (found["best_step"], found["steps"]) == (5, 10)
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"step-5", "step-10"}


@pytest.mark.parametrize(
    "more, part",
    [
        (["--seed", "3"], "seed was 0, is 3"),
        (["--gem.dim", "32"], "gem.dim was 16, is 32"),
        (["--dense-lr", "0.5"], "optimizer.dense_lr was 0.001, is 0.5"),
    ],
)
def test_checkpoint_of_another_configuration(plain_run, data, tmp_path, more, part):
    run, _ = plain_run
    before = (run / "config.yaml").read_text()
    code, text = train(tmp_path, command(data, run, *more))
    assert code == 2
    assert part in text
    assert text.count("\n") == 1
    assert (run / "config.yaml").read_text() == before


def test_checkpoint_of_other_data(plain_run, tmp_path):
    other = testing_data.write_tiny(tmp_path / "other", train=300)
    code, text = train(tmp_path, command(other, plain_run[0]))
    assert (code, text.count("\n")) == (2, 1)
    assert "data was " in text


def change(table, name, values):
    index = table.schema.names.index(name)
    return table.set_column(index, name, values)


def bad_label(table):
    return change(table, "click", pa.array([None] + [0] * (table.num_rows - 1), pa.int8()))


def no_column(table):
    return table.drop_columns("price")


def bad_id(table):
    return change(table, "item", pa.array([999] + [0] * (table.num_rows - 1)))


@pytest.mark.parametrize(
    "fault, words", [(bad_label, ["click", "null"]), (no_column, ["price"]), (bad_id, ["item", "999"])]
)
@pytest.mark.parametrize("part", ["train", "valid"])
def test_bad_data(data, tmp_path, fault, words, part):
    folder, run = tmp_path / "data", tmp_path / "run"
    testing_data.write_tiny(folder, train=64)
    file = folder / part / "part-00000.parquet"
    pq.write_table(fault(pq.read_table(file)), file)
    code, text = train(tmp_path, command(folder, run))
    assert code == 2, text
    last = text.splitlines()[-1]
    assert last.startswith("faceter train: ")
    assert all(word in last for word in [*words, str(folder / part)]), text
    if part == "train":
        assert not run.exists()
    assert not (run / "metrics.json").exists()
    if fault is not no_column and part == "train":
        code, text = train(tmp_path, command(folder, run, "--on-bad-row", "skip"))
        assert code == 0, text
        assert "rows left out" in text
        assert metrics(run)["bad_rows"][0][3] == 2  # once in each epoch


def test_other_wrong_input(data, tmp_path):
    for argv, word in (
        (["--model", "tiny"], "brings no data"),
        (["--model", "none"], "no configuration 'none'"),
        (["--data", str(tmp_path / "none")], "no schema"),
        (command(data, tmp_path / "run", "--device", "cuda"), "no CUDA GPU"),
        (["--replay", str(tmp_path / "none.pt")], "no such file"),
        (["--replay", str(data / "schema.yaml")], "was not written by"),
    ):
        code, text = train(tmp_path, argv)
        assert code == 2, text
        assert word in text
        assert text.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_parts_may_be_missing(data, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "schema.yaml").write_text((data / "schema.yaml").read_text())
    code, text = train(tmp_path, command(folder, tmp_path / "run"))
    assert (code, text.count("\n")) == (2, 1)
    assert "no train folder" in text
    (folder / "train").symlink_to(data / "train")
    code, text = train(tmp_path, command(folder, tmp_path / "run"))
    assert code == 0, text
    assert metrics(tmp_path / "run")["best_step"] == 10
    assert "test" not in metrics(tmp_path / "run")


def test_non_finite_loss_is_kept_and_replayed(tmp_path):
    folder, run = tmp_path / "data", tmp_path / "run"
    testing_data.write_tiny(folder)
    file = folder / "train" / "part-00000.parquet"
    table = pq.read_table(file)
    prices = table["price"].to_numpy().copy()
    prices[200] = np.float32(3e38)  # a number, but its sum with others is none
    pq.write_table(change(table, "price", pa.array(prices)), file, row_group_size=32)
    code, text = train(tmp_path, command(folder, run, "--shuffle-rows", "0", "--checkpoint-every", "2"))
    assert code == 3, text
    last = text.splitlines()[-1]
    assert "loss of task click, buy is not finite in step 4" in last
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"step-2"}
    assert not (run / "metrics.json").exists()
    file = run / "nonfinite-step-4.pt"
    assert str(file) in last
    code, text = train(tmp_path, ["--replay", str(file)])
    assert code == 0, text
    assert "step 4, batch of 64 rows, task click, buy" in text
    assert "first non-finite output: module core.dense_tokens." in text


def test_module_runs_as_a_program(data, tmp_path):
    """What `faceter train` and Bazel's binary do, in a process of its own."""
    argv = command(data, "run", "--max-steps", "1")
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path), "BUILD_WORKING_DIRECTORY": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "faceter.tools.train.main", *argv], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["schedule"]["max_steps"] == 1
