"""`faceter bench`: finds each benchmark by name."""

import importlib.util
from types import SimpleNamespace

import pytest

from faceter.tools.bench import main as bench


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_each_name_is_a_module(name):
    assert importlib.util.find_spec(f"faceter.tools.bench.{bench.BENCHMARKS[name]}") is not None


def test_arguments_and_exit_code_are_passed_on(monkeypatch):
    calls = []
    modules = {"faceter.tools.bench.reader": SimpleNamespace(main=lambda argv: calls.append(argv) or 7)}
    monkeypatch.setattr(bench.importlib, "import_module", modules.__getitem__)
    assert bench.main(["reader", "--rounds", "3"]) == 7
    assert calls == [["--rounds", "3"]]


def test_kernels(capsys):
    assert bench.main(["kernels", "--list", "--only", "gdpa-pffn"]) == 0
    assert capsys.readouterr().out.startswith("gdpa-pffn/B1024 H3 D128 Q1000 KV192 s=0.5: faceter, ")


def test_unknown_and_missing_names(capsys):
    assert bench.main(["nothing"]) == bench.main([]) == 2
    assert "{kernels," in capsys.readouterr().err
    assert bench.main(["--help"]) == 0
    assert "{kernels," in capsys.readouterr().out
