"""A wrong result is seen, a right one passes."""

import math

import pytest
import torch

from faceter.tools.bench.kernels.check import LIMIT, Oracle, verdict
from faceter.tools.bench.kernels.peers import PEERS
from faceter.tools.bench.kernels.problems import draw
from faceter.tools.bench.kernels.workloads import EAGER, FACETER, SDPA_MASK, workloads

CPU = torch.device("cpu")
FAMILIES = {w.family: w.tiny() for w in workloads() if w.lengths in (0.5, 0.7, "log-normal")}


def computed(family, peer=FACETER):
    problem = draw(FAMILIES[family], CPU)
    run = PEERS[peer](problem)
    return Oracle(problem), run, run.call("both")(1)


@pytest.mark.parametrize("family", FAMILIES)
def test_right_results_pass(family):
    for peer in (FACETER, *FAMILIES[family].peers):
        if peer not in (FACETER, EAGER, SDPA_MASK):
            continue
        oracle, run, found = computed(family, peer)
        errors = oracle.errors(run, found, 1)
        assert set(errors) == {"o", "dq", "dk", "dv"}
        assert not verdict(errors)
        assert all(errors.values()), "exactly right in bf16: then the definition was compared with itself"


@pytest.mark.parametrize("name", ["o", "dq", "dk", "dv"])
@pytest.mark.parametrize("family", ["gdpa-cross", "jagged-self", "pooling", "block"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x * 1.03,
        lambda x: x.flip(-2),  # heads
        lambda x: torch.cat([x[1:], x[:1]]),  # one row, or example, on
        lambda x: torch.where(torch.arange(x.shape[-1]) == 3, float("nan"), x),
        torch.zeros_like,
    ],
    ids=["scaled", "heads", "shifted", "nan", "zeros"],
)
def test_wrong_results_do_not(family, name, spoil):
    oracle, run, found = computed(family)
    wrong = verdict(oracle.errors(run, {**found, name: spoil(found[name])}, 1))
    assert wrong.startswith(f"{name} is off")
    assert "," not in wrong


def test_results_of_another_copy_are_wrong():
    oracle, run, found = computed("gdpa-self")
    assert verdict(oracle.errors(run, found, 0))


def test_a_part_of_the_batch_is_checked_alone(monkeypatch):
    from faceter.tools.bench.kernels.peers import padded

    workload = FAMILIES["jagged-self"]
    # Of three of its examples.
    budget = 3 * padded._SCORE_BYTES * workload.heads * workload.max_q * workload.max_kv
    monkeypatch.setattr(padded, "_SCORES_BUDGET", budget)
    oracle, run, found = computed("jagged-self", EAGER)
    assert (run.batch, run.scale) == (3, workload.batch / 3)
    assert not verdict(oracle.errors(run, found, 1))


def test_the_limit_is_the_worst_that_passes():
    assert not verdict({"o": LIMIT})
    assert verdict({"o": LIMIT * 1.001})
    assert verdict({"o": math.nan})
