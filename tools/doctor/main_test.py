import io
import json

import pytest
from rich.console import Console

from faceter.tools.doctor import main as main_module
from faceter.tools.doctor.facts import Facts, Gpu
from faceter.tools.doctor.report import as_json, print_report

GOOD = Facts(
    "3.11.7",
    {
        "torch": "2.13.0",
        "triton": "3.7.1",
        "torchrec": "1.8.0",
        "fbgemm-gpu": "1.8.0",
        "torchmetrics": "1.0.3",
        "tensordict": "0.1",
        "pyre-extensions": "0.1",
        "tqdm": "4.1",
        "numpy": "2.4.6",
        "pyarrow": "26.0.1",
    },
    cuda="13.0",
    gpus=(Gpu("H200", (9, 0), 139.81),),
    backends=("gloo", "nccl"),
    driver="580.95",
)
NOTHING = Facts("3.11.7", {})


def text(facts, width=200):
    console = Console(file=io.StringIO(), width=width)
    print_report(facts, "9.9", console)
    return console.file.getvalue()


@pytest.mark.parametrize(("facts", "code"), [(GOOD, 0), (NOTHING, 1)])
def test_exit_code_and_json(monkeypatch, capsys, facts, code):
    monkeypatch.setattr(main_module, "gather", lambda: facts)
    assert main_module.main(["--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["can_train"] == (code == 0)
    assert report["packages"] == facts.packages
    assert report["gpus"] == [{"name": g.name, "arch": "sm_90", "memory_gib": 139.8} for g in facts.gpus]
    assert bool(report["problems"]) == (code == 1)


def test_tables_name_everything(monkeypatch, capsys):
    monkeypatch.setattr(main_module, "gather", lambda: GOOD)
    assert main_module.main([]) == 0
    out = text(GOOD)
    for part in ("2.13.0 (CUDA 13.0)", "fbgemm-gpu 1.8.0", "H200", "sm_90", "139.8 GiB", "580.95", "gloo, nccl", "9.9"):
        assert part in out
    assert "No problems found." in out


def test_a_fix_is_one_line_on_a_narrow_terminal():
    (fix,) = (p["fix"] for p in as_json(NOTHING, "9.9")["problems"] if "torch is" in p["what"])
    assert fix in text(NOTHING, width=40)


def test_unknown_option_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main_module.main(["--jsn"])
    assert stop.value.code == 2
    assert "--jsn" in capsys.readouterr().err
