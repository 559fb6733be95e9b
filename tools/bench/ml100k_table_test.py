"""The table of results: what is written can be read back and drawn."""

import pytest

from faceter.tools.bench.ml100k_gem import result
from faceter.tools.bench.ml100k_table import Result, header, main, parse, row

NAN = float("nan")
ROWS = [
    row("logistic regression", [Result(NAN, 0.7645, 0.837, 3.2)]),
    row("GEM", [Result(0.75, 0.77, 0.82, 10.0), Result(0.76, 0.78, 0.84, 20.0)]),
]


def test_mean_and_standard_deviation():
    assert ROWS[0] == "| logistic regression | - | 0.7645 | 0.8370 | 3 |"
    assert ROWS[1] == "| GEM | 0.7550 ± 0.0071 | 0.7750 ± 0.0071 | 0.8300 ± 0.0141 | 15 |"


def test_read_back():
    text = "\n".join(["# Results", "", header(), *ROWS, "", "| another | table |"])
    assert parse(text) == [("logistic regression", 0.7645, 0.0), ("GEM", 0.775, 0.0071)]


@pytest.mark.parametrize("text", ["no table", header() + "\n| GEM | 0.7 | none | 0.8 | 1 |"])
def test_not_a_table(text, tmp_path, capsys):
    with pytest.raises(ValueError, match="no t"):
        parse(text)
    (tmp_path / "results.md").write_text(text)
    assert main([str(tmp_path / "results.md"), str(tmp_path / "figure.png")]) == 2
    assert "results.md: no t" in capsys.readouterr().err
    assert not (tmp_path / "figure.png").exists()


def test_figure(tmp_path):
    (tmp_path / "results.md").write_text("\n".join([header(), *ROWS]))
    assert main([str(tmp_path / "results.md"), str(tmp_path / "figure.png")]) == 0
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_metrics_of_a_run():
    metrics = {part: {"like": {"all": {"auc": auc, "ne": 0.8}}} for part, auc in (("valid", 0.75), ("test", 0.77))}
    assert result(metrics, 5.0) == Result(0.75, 0.77, 0.8, 5.0)
