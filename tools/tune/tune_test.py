"""Workloads run, a table is what was fastest without spills, and mistakes are named."""

import json

import pytest
import torch

from faceter.kernels.configs import Key
from faceter.tools.tune import main as tool
from faceter.tools.tune import table, workloads

FAST, SLOW, SPILLING = ({"BLOCK_M": m, "num_warps": 4} for m in (64, 32, 128))
LONG, SHORT = Key("k", 16, 64, "", "> 256", "> 256"), Key("k", 16, 64, "", "<= 256", "<= 64")


def test_every_workload_runs(monkeypatch):
    monkeypatch.setattr(workloads, "_ROWS", 64)
    monkeypatch.setattr(workloads, "_LENGTHS", ((12, 12), (5, 12)))
    names = []
    for name, run in workloads.workloads(torch.device("cpu")):
        run()
        names.append(name)
    assert len(set(names)) == len(names)
    assert {name.split()[0] for name in names} == {"gdpa", "jagged_attention", "block_attention"}


def rows(times, spills=lambda config: 99 * (config == SPILLING)):
    found = table.choose(
        LONG.of_all_lengths, sorted(times, key=lambda t: t["milliseconds"]), [SLOW, FAST, SPILLING], spills
    )
    return {Key(**row["key"]): row for row in found}


def took(key, config, milliseconds):
    return {"key": vars(key), "config": config, "milliseconds": milliseconds}


def test_the_fastest_that_does_not_spill():
    times = [took(LONG, SPILLING, 0.1), took(LONG, FAST, 0.2), took(LONG, SLOW, 0.3)]
    times += [took(SHORT, SLOW, 0.01), took(SHORT, FAST, 0.02)]
    found = rows(times)
    assert found[LONG]["config"] == FAST
    assert found[SHORT]["config"] == SLOW
    assert found[LONG.of_all_lengths]["config"] == FAST


def test_the_first_that_does_not_spill_or_least_where_nothing_was_measured():
    (row,) = rows([]).values()
    assert (row["config"], row["spills"]) == (SLOW, 0)
    (row,) = rows([], spills=lambda config: config["BLOCK_M"]).values()
    assert (row["config"], row["spills"]) == (SLOW, 32)


def test_a_table_is_read_as_it_was_written(tmp_path, monkeypatch):
    from faceter.kernels import configs

    found = rows([took(LONG, FAST, 0.2)])
    table.write_table("sm_90", {"device": "GPU", "rows": list(found.values())}, tmp_path)
    monkeypatch.setattr(configs, "TABLES", tmp_path)
    configs.table.cache_clear()
    try:
        assert configs.table("sm_90") == {LONG: FAST, LONG.of_all_lengths: FAST}
    finally:
        configs.table.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_without_a_gpu_is_refused(tmp_path, capsys):
    assert tool.main(["measure", str(tmp_path / "times.json")]) == 2
    assert "measuring needs a CUDA GPU" in capsys.readouterr().err


def test_times_of_another_gpu_or_none_are_refused(tmp_path, capsys):
    file = tmp_path / "times.json"
    assert tool.main(["table", "sm_90", str(file)]) == 2
    assert f"{file} can't be read" in capsys.readouterr().err
    file.write_text(json.dumps({"arch": "sm_80", "times": []}))
    assert tool.main(["table", "sm_90", str(file)]) == 2
    assert f"{file} was measured on sm_80, not sm_90" in capsys.readouterr().err
