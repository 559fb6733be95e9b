import io
import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from faceter.tools.train import metrics, mfu, progress
from faceter.tools.train.running import RunningFigures
from faceter.tools.train.summaries import Record

ALONE = SimpleNamespace(reduce=lambda values: values, world_size=1)


def predictions(rows, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (rows, 1), generator=g).float()
    return metrics.Predictions(torch.randn(rows, 1, generator=g), labels, torch.ones(rows), torch.zeros(rows).long())


def test_loss_is_since_the_last_take_and_ne_over_the_window():
    figures = RunningFigures(tasks=1, window_rows=10)
    parts = [predictions(n, n) for n in (4, 8, 6)]
    for part, loss in zip(parts, (9.0, 1.0, 2.0), strict=True):
        figures.add(part, loss, flops=5.0, seconds=0.5)
        if loss == 9.0:
            assert figures.take(ALONE)["loss"] == 9.0
    got = figures.take(ALONE)
    assert got["loss"] == pytest.approx((1.0 * 8 + 2.0 * 6) / 14)
    assert got["qps"] == pytest.approx(14 / 1.0)
    assert got["flops"] == 10.0
    newest = metrics.Predictions.concatenate(parts).newest(10).task(0)
    assert (got["ne"], got["auc"]) == (newest.ne, newest.auc)
    assert len(figures.window()) == 10


def test_state_goes_on_exactly():
    one, other = RunningFigures(1, 7), RunningFigures(1, 7)
    for n in (3, 5, 2):
        one.add(predictions(n, n), 0.1 * n, 1.0, 0.1)
    other.load_state_dict(one.state_dict())
    for figures in (one, other):
        figures.add(predictions(4, 9), 0.3, 1.0, 0.1)
    assert one.take(ALONE) == other.take(ALONE)


def test_mfu():
    assert mfu.peak_flops(torch.device("cpu")) is None
    assert mfu.mfu(989e12, 2.0, 989e12) == 0.5
    assert mfu.mfu(989e12, 1.0, 989e12, devices=4) == 0.25
    assert mfu.mfu(1.0, 1.0, None) is None


@pytest.mark.parametrize(
    "name, peak", [("NVIDIA H200", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA B200", 2250), ("X", None)]
)
def test_datasheet_peaks(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert mfu.peak_flops(torch.device("cuda")) == (peak and peak * 1e12)


FIGURES = {"loss": 0.5, "ne": None, "auc": 0.75, "qps": 1234.5, "mfu": 0.123}


def test_plain_lines_without_a_terminal():
    text = io.StringIO()
    display = progress.Display(True, Console(file=text, soft_wrap=True, force_terminal=False))
    with display:
        display.step(10, 100, "1/2", FIGURES, 75.0)
        display.advance(11, 100)
    line = "step 10/100 epoch 1/2 loss 0.5000 NE n/a AUC 0.7500 QPS 1,234 MFU 12.3% ETA 0:01:15\n"
    assert text.getvalue() == line


def test_a_bar_on_a_terminal():
    text = io.StringIO()
    display = progress.Display(True, Console(file=text, force_terminal=True, width=200))
    with display:
        display.step(10, 100, "1/2", FIGURES, 75.0)
    assert "10/100" in text.getvalue()
    assert "MFU 12.3%" in text.getvalue()


def test_other_processes_are_silent(capsys):
    text = io.StringIO()
    display = progress.Display(False, Console(file=text))
    display.step(10, 100, "1/2", FIGURES, 75.0)
    display.message("x")
    display.warning("x")
    display.table("x", {})
    assert text.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_table_has_tasks_and_domains():
    text = io.StringIO()
    display = progress.Display(True, Console(file=text, width=120))
    both = predictions(50)
    both.domains[:20] = 1
    display.table("t", metrics.report(both, ["click"], ["feed", "story"]))
    for part in ("click", "all", "feed", "story", "50", "30", "20", "calibration"):
        assert part in text.getvalue()


def test_record_drops_what_came_after_the_checkpoint(tmp_path):
    record = Record(tmp_path, 0)
    for step in (1, 2, 3):
        record.training(step, {"loss": step / 7, "ne": None})
    record.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # killed while writing
    record = Record(tmp_path, 2)
    record.training(3, {"loss": 0.25, "ne": None})
    record.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(r["step"], r["loss"]) for r in lines] == [(1, 1 / 7), (2, 2 / 7), (3, 0.25)]
    record = Record(tmp_path, 0)
    record.close()
    assert (tmp_path / "log.jsonl").read_text() == ""
    assert list((tmp_path / "tensorboard").iterdir())
