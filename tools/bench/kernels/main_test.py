"""The whole benchmark with toy shapes on a CPU, and how it ends."""

import json

import pytest
import torch

from faceter.kernels.implementations import VARIABLE, interpreted
from faceter.tools.bench.kernels import main as bench
from faceter.tools.bench.kernels import peers, report
from faceter.tools.bench.kernels.workloads import COMPILED, EAGER, FACETER, FLEX, SDPA_CUDNN, SDPA_MASK, VARLEN

TINY = ["--device", "cpu", "--tiny"]
# One workload of each family, and all peers.
EACH_FAMILY = (
    r"(cross|small|pffn|gdpa-self|block|pooling|jagged-self).*s=0\.[57]|(jagged-self).*1\.0|schedule.*log|tile"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "results.json"
    assert bench.main([*TINY, "--only", EACH_FAMILY, "--json", str(file)]) == 0
    return file


def status(results, peer, direction):
    rows = [r for r in report.load(results)["rows"] if (r["peer"], r["direction"]) == (peer, direction)]
    return {row["status"] for row in rows}


def test_every_family_and_peer_has_rows(results):
    found = report.load(results)
    families = {"gdpa-cross", "gdpa-small", "gdpa-pffn", "gdpa-self", "jagged-self", "block", "pooling"}
    assert set(report.families(found)) == families | {"schedule-gdpa", "schedule-jagged", "tile-list"}
    assert {row["peer"] for row in found["rows"]} >= set(peers.PEERS)
    for direction in ("forward", "backward", "both"):
        for peer in (FACETER, EAGER, COMPILED, SDPA_MASK, "tiles in order"):
            assert status(results, peer, direction) == {"ok"}, (peer, direction)
    assert status(results, FLEX, "forward") == {"ok"}
    # What a CPU can't do is a row with the reason.
    assert status(results, FLEX, "backward") == status(results, VARLEN, "forward") == {"none"}
    assert status(results, SDPA_CUDNN, "forward") == {"none"}
    assert all(row["reason"] for row in found["rows"] if row["status"] == "none")
    assert status(results, "launched one by one", "forward") == {"ok"}


def test_what_a_row_holds(results):
    found = report.load(results)
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert len(found["rates"]) == 2
    row = next(r for r in found["rows"] if r["peer"] == FACETER and r["direction"] == "both")
    assert row["ms"] > 0
    assert len(row["samples"]) >= 3
    assert row["tflops"] == pytest.approx(
        3.5 * found["workloads"][row["workload"]]["forward_flops"] / row["ms"] / 1e9
    )  # fmt: skip
    assert set(row["errors"]) == {"o", "dq", "dk", "dv"}
    assert row["cublas_share"] == pytest.approx(row["tflops"] / sum(r["cublas_tflops"] for r in found["rates"]) * 2)
    assert row["speedup"] > 0


def test_saved_results_are_drawn_and_printed(results, capsys):
    assert bench.main(["--plot", str(results)]) == 0
    assert (results.parent / "results-gdpa-self.png").exists()
    assert bench.main(["--markdown", str(results)]) == 0
    assert "### jagged-self" in capsys.readouterr().out


SMALL = [*TINY, "--only", "gdpa-pffn", "--peers", "eager"]


def test_a_wrong_peer_is_marked_and_the_exit_code_says_so(monkeypatch, tmp_path, capsys):
    def wrong(problem):
        run = peers.padded.eager(problem)
        right, run.forward = run.forward, lambda q, k, v: right(q, k, v) * 1.05
        return run

    monkeypatch.setitem(peers.PEERS, EAGER, wrong)
    file = tmp_path / "results.json"
    assert bench.main([*SMALL, "--json", str(file)]) == 1
    assert status(file, EAGER, "forward") == status(file, EAGER, "backward") == {"wrong"}
    assert status(file, FACETER, "forward") == {"ok"}
    assert "o is off by 0.05" in capsys.readouterr().out


def test_a_peer_that_breaks_ends_nothing(monkeypatch, tmp_path):
    def broken(problem):
        raise RuntimeError("not on this machine")

    monkeypatch.setitem(peers.PEERS, EAGER, broken)
    file = tmp_path / "results.json"
    assert bench.main([*SMALL, "--json", str(file)]) == 0
    reasons = [row["reason"] for row in json.loads(file.read_text())["rows"] if row["peer"] == EAGER]
    assert reasons == ["RuntimeError: not on this machine"] * 3


def test_faceter_that_breaks_is_a_failure(monkeypatch):
    monkeypatch.setenv(VARIABLE, "no such implementation")
    assert bench.main([*SMALL]) == 1


@pytest.mark.skipif(not interpreted(), reason="needs TRITON_INTERPRET=1")
def test_triton_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "triton")
    file = tmp_path / "results.json"
    assert bench.main([*SMALL, "--json", str(file)]) == 0
    notes = {row["note"] for row in report.load(file)["rows"] if row["peer"] == FACETER}
    assert notes == {"triton"}


def test_time_that_is_over(tmp_path):
    file = tmp_path / "results.json"
    assert bench.main([*SMALL, "--minutes", "1e-9", "--json", str(file)]) == 0
    assert status(file, FACETER, "forward") == {"none"}


def test_wrong_usage(monkeypatch, tmp_path, capsys):
    assert bench.main(["--only", "("]) == 2
    assert bench.main(["--markdown", str(tmp_path / "none.json")]) == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 2
    assert "there is no GPU" in capsys.readouterr().err
