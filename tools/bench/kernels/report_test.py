"""From rows to JSON and back, to shares, and to Markdown."""

import math
import sys

import pytest

from faceter.tools.bench.kernels import report
from faceter.tools.bench.kernels.measure import row, rows_of_failure
from faceter.tools.bench.kernels.plot import plot
from faceter.tools.bench.kernels.workloads import COMPILED, EAGER, FACETER, VARLEN, workloads

CROSS = next(w for w in workloads() if w.family == "gdpa-cross")
BLOCK = next(w for w in workloads() if w.family == "block")


def timed(workload, peer, direction, ms, status="ok", reason="", **more):
    numbers = {"ms": ms, "samples": [ms], "tflops": 400 / ms, "gbs": 4000 / ms, "errors": {"o": 0.003}, "note": ""}
    return row(workload, peer, direction, status, reason, **numbers | more)


def results():
    rows = [
        timed(CROSS, FACETER, "forward", 1.0, note="triton"),
        timed(CROSS, EAGER, "forward", 4.0, scale=2.5),
        timed(CROSS, COMPILED, "forward", 3.0),
        timed(CROSS, VARLEN, "forward", 0.1, "wrong", "o is off by nan", errors={"o": math.nan}),
        timed(CROSS, FACETER, "both", 2.0),
        timed(CROSS, EAGER, "both", 10.0),
        timed(BLOCK, FACETER, "forward", 2.0),
        *rows_of_failure(BLOCK, COMPILED, "out of memory"),
    ]
    machine = {"device": "NVIDIA H200", "date": "2026-01-02", "peak_tflops": 989.0, "versions": {"torch": "2.11"}}
    rates = [{"cublas_tflops": 600.0, "copy_gbs": 4000.0}, {"cublas_tflops": 1000.0, "copy_gbs": 4000.0}]
    found = {"machine": machine, "rates": rates, "workloads": {}, "rows": rows}
    report.add_shares(found)
    return found


def cell(found, workload, peer, direction, name):
    (row,) = [
        r
        for r in found["rows"]
        if (r["workload"], r["peer"], r["direction"]) == (workload.name, peer, direction)
    ]  # fmt: skip
    return row.get(name)


def test_shares_and_speedups():
    found = results()
    assert cell(found, CROSS, FACETER, "forward", "cublas_share") == 400 / 800
    assert cell(found, CROSS, FACETER, "forward", "peak_share") == 400 / 989
    assert cell(found, BLOCK, FACETER, "forward", "copy_share") == 0.5
    assert cell(found, CROSS, EAGER, "forward", "speedup") == 4.0
    assert cell(found, CROSS, EAGER, "both", "speedup") == 5.0
    # The best peer; what is wrong is none, however fast.
    assert cell(found, CROSS, FACETER, "forward", "speedup") == 3.0
    assert cell(found, CROSS, VARLEN, "forward", "speedup") is None
    assert cell(found, BLOCK, FACETER, "forward", "speedup") is None


def test_json_is_what_was_saved(tmp_path):
    found, file = results(), tmp_path / "results.json"
    report.save(found, file)
    again = report.load(file)
    assert cell(found, CROSS, VARLEN, "forward", "errors")["o"] is not None
    assert cell(again, CROSS, VARLEN, "forward", "errors") == {"o": None}  # JSON has no NaN
    found["rows"][3]["errors"]["o"] = None
    assert again == found
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match="no result of this benchmark"):
        report.load(tmp_path / "a.json")


def test_markdown():
    text = report.markdown(results())
    lines = text.splitlines()
    assert lines[0] == "NVIDIA H200, torch 2.11, 2026-01-02."
    assert "cuBLAS bf16 8192^3: 600.0 TFLOP/s before, 1,000.0 after" in lines[1]
    at = lines.index("### gdpa-cross") + 2
    assert lines[at] == (
        "| workload | peer | fwd ms | fwd TFLOP/s | fwd % cuBLAS | fwd % peak | fwd × | fwd+bwd ms | × | error |"
    )
    name = "B1152 H4 D128 Q1000 KV256 s=0.5"
    assert lines[at + 2 : at + 6] == [
        f"| {name} | faceter (triton) | 1.000 | 400 | 50 | 40 | 3.00 | 2.000 | 5.00 | 3.0e-03 |",
        f"| {name} | eager padded | 4.000 | 100 | 12 | 10 | 4.00 | 10.000 | 5.00 | 3.0e-03 |",
        f"| {name} | compile padded | 3.000 | 133 | 17 | 13 | 3.00 |  |  | 3.0e-03 |",
        f"| {name} | varlen (FA2) | 0.100 wrong | 4,000 | 500 | 404 |  |  |  | nan |",
    ]
    assert f"- eager padded: computed a part of the batch; its times are for all of it ({name})" in lines
    assert f"- varlen (FA2): wrong: o is off by nan ({name})" in lines
    block = lines[lines.index("### block") :]
    assert block[2] == "| workload | peer | fwd ms | fwd GB/s | fwd % copy | bwd ms | fwd+bwd ms | error |"
    assert block[5] == "| B1152 H4 D128 Q2000 s=0.7 | compile padded | - |  |  | - | - |  |"
    assert "- compile padded: none: out of memory (B1152 H4 D128 Q2000 s=0.7)" in block


@pytest.mark.parametrize("rich", [True, False])
def test_tables_with_and_without_rich(monkeypatch, capsys, rich):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    report.show(results())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [
        *CROSS.name.split("/")[1].split(),
        "compile",
        "padded",
        "3.000",
        "133",
        "17",
        "13",
        "3.00",
        "3.0e-03",
    ] in lines


def test_a_picture_for_each_family(tmp_path):
    files = plot(results(), tmp_path / "results")
    assert [file.name for file in files] == ["results-gdpa-cross.png", "results-block.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
