"""Where a config comes from: the table, a file, or tuning, once over all processes."""

import json
import multiprocessing

import pytest
import torch

from faceter.kernels import configs, tuning
from faceter.kernels.configs import Key, bucket

CANDIDATES = [{"BLOCK_M": 64, "num_warps": 4}, {"BLOCK_M": 32, "num_warps": 4}, {"BLOCK_M": 16, "num_warps": 8}]
BY_BITS = {16: CANDIDATES, 32: CANDIDATES}
MILLISECONDS = {64: 3.0, 32: 1.0, 16: 2.0}


class _Kernel:
    """Stands in for a triton.jit function."""

    __name__ = "some_kernel"
    cache_key = "source 1"


def run(kernel=None, rows=100, loop=1000, launch=lambda config: None):
    """The config that a launch of a (.., 40) bfloat16 tensor got."""
    got = []

    def both(config):
        launch(config)
        got.append(config)

    tuning.run(kernel or _Kernel(), BY_BITS, both, torch.empty(1, 40, dtype=torch.bfloat16), "window", rows, loop)
    return got[-1]


def pretend(folder, monkeypatch_setattr, monkeypatch_setenv):
    """A GPU of a kind that no table is of, on which a config takes as long as MILLISECONDS says."""
    times = []

    def time(call):
        got = []
        call_config(call, got)
        times.append(got[0]["BLOCK_M"])
        return MILLISECONDS[got[0]["BLOCK_M"]]

    def call_config(call, got):
        got.append(call.__defaults__[0])
        call()

    monkeypatch_setattr(tuning, "architecture", lambda device: "sm_00")
    monkeypatch_setattr(tuning, "_can_tune", lambda device: True)
    monkeypatch_setattr(tuning, "_time", time)
    monkeypatch_setattr(tuning, "_known", {})
    monkeypatch_setenv("XDG_CACHE_HOME", str(folder))
    return times


@pytest.fixture
def times(tmp_path, monkeypatch):
    return pretend(tmp_path, monkeypatch.setattr, monkeypatch.setenv)


def forget(monkeypatch):
    monkeypatch.setattr(tuning, "_known", {})  # as a new process


def files(folder):
    return list(folder.rglob("*.json"))


def test_a_missing_key_is_tuned_once_and_kept_in_a_file(times, tmp_path, monkeypatch):
    assert run() == CANDIDATES[1]
    assert times == [64, 32, 16]
    run()
    forget(monkeypatch)
    assert run() == CANDIDATES[1]
    assert len(times) == 3
    (file,) = files(tmp_path)
    assert json.loads(file.read_text())["milliseconds"] == 1.0


def test_lengths_of_one_bucket_share_a_config_and_others_do_not(times):
    run(rows=100, loop=1000)
    run(rows=256, loop=300)
    assert len(times) == 3
    run(rows=257, loop=300)
    assert len(times) == 6
    assert [bucket(n) for n in (0, 64, 65, 256, 257)] == ["<= 64", "<= 64", "<= 256", "<= 256", "> 256"]


def test_a_changed_kernel_is_tuned_again(times, monkeypatch):
    run()
    forget(monkeypatch)
    changed = _Kernel()
    changed.cache_key = "source 2"
    run(changed)
    assert len(times) == 6


@pytest.mark.parametrize("content", ["", "{", "[]", '{"config": null}', '{"config": {"BLOCK_M": "large"}}'])
def test_a_file_that_is_no_good_is_made_again(times, tmp_path, monkeypatch, caplog, content):
    run()
    (file,) = files(tmp_path)
    file.write_text(content)
    forget(monkeypatch)
    assert run() == CANDIDATES[1]
    assert len(times) == 6
    assert f"{file} can't be used and is made again" in caplog.text
    assert json.loads(file.read_text())["config"] == CANDIDATES[1]


def test_a_folder_that_cannot_be_written_costs_the_file_only(times, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run() == CANDIDATES[1]
    assert run() == CANDIDATES[1]
    assert len(times) == 3
    assert "what was tuned is lost when this process ends" in caplog.text


def test_a_config_that_does_not_fit_is_passed_over(times):
    def launch(config):
        if config["BLOCK_M"] == 32:
            raise tuning.triton.OutOfResources(300, 200, "shared memory")

    assert run(launch=launch) == CANDIDATES[2]

    def compiler_fails(config):
        if config["BLOCK_M"] == 32:
            raise RuntimeError("PassManager::run failed")

    assert run(loop=1, launch=compiler_fails) == CANDIDATES[2]

    def never(config):
        raise tuning.triton.OutOfResources(300, 200, "shared memory")

    with pytest.raises(RuntimeError, match=r"no config runs on this device: .*shared memory"):
        run(rows=1, launch=never)

    def out_of_memory(config):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        run(rows=1, launch=out_of_memory)


def test_the_table_comes_first_and_serves_all_lengths_where_nothing_can_be_tuned(times, monkeypatch):
    key = Key("some_kernel", 16, 64, "window", "<= 256", "> 256")
    rows = {key: {"BLOCK_M": 128, "num_warps": 4}, key.of_all_lengths: {"BLOCK_M": 256, "num_warps": 4}}
    monkeypatch.setattr(tuning, "table", lambda arch: rows)
    assert run()["BLOCK_M"] == 128
    monkeypatch.setattr(tuning, "_can_tune", lambda device: False)
    assert run(rows=1)["BLOCK_M"] == 256
    monkeypatch.setattr(tuning, "table", lambda arch: {})
    assert run(rows=1) == CANDIDATES[0]
    assert times == []
    monkeypatch.setattr(tuning, "_can_tune", lambda device: True)
    assert run(rows=1) == CANDIDATES[1]  # what ran meanwhile is not remembered


def test_the_variable_turns_tuning_off(monkeypatch):
    device = torch.device("xpu")
    assert tuning._can_tune(device)
    monkeypatch.setenv("FACETER_TUNE", "0")
    assert not tuning._can_tune(device)


def test_recording_times_all_candidates_whatever_is_known(times):
    run()
    with tuning.recording() as found:
        tuning.run(_Kernel(), BY_BITS, lambda config: None, torch.empty(1, 64), "window", 1, 1)
    assert [(t.config["BLOCK_M"], t.milliseconds) for t in found] == [(32, 1.0), (16, 2.0), (64, 3.0)]
    assert found[0].key == Key("some_kernel", 32, 64, "", "<= 64", "<= 64")


def test_processes_that_compile_have_each_candidate_once(times):
    launched = []
    for part in range(2):
        with tuning.compiling(part, 2):
            tuning.run(_Kernel(), BY_BITS, launched.append, torch.empty(1, 64), "", 1, 1)
    assert sorted(c["BLOCK_M"] for c in launched) == [16, 32, 64]
    assert times == []


def _tune_in_a_process(folder, barrier, results):
    import os

    times = pretend(folder, setattr, lambda name, value: os.environ.__setitem__(name, value))
    barrier.wait()
    results.put((run()["BLOCK_M"], len(times)))


def test_of_many_processes_one_tunes_and_all_get_its_result(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_tune_in_a_process, args=(tmp_path, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(found) == [(32, 0), (32, 0), (32, 0), (32, 3)]


def test_tables_are_read_by_name_of_the_gpu():
    assert configs.table("sm_00") == {}
    assert configs.architecture(torch.device("xpu")) in ("xpu", "interpreter")
