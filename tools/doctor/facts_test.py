import os
import sys

import pytest

from faceter.tools.doctor import facts as facts_module
from faceter.tools.doctor.diagnosis import can_train
from faceter.tools.doctor.facts import gather, installed, probe


def test_the_environment_of_the_tests_can_train():
    facts = gather()
    assert facts.broken == {}
    assert can_train(facts)
    assert facts.packages.keys() >= {"torch", "torchrec", "triton", "numpy", "pyarrow"}
    assert "gloo" in facts.backends


def test_versions_come_without_an_import():
    assert installed(["pytest", "no-such-package-at-all"]) == {"pytest": pytest.__version__}


def test_a_process_that_dies_is_reported():
    value, error = probe("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (value, error) == (None, "killed by signal 11")


def test_the_loaders_words_win_over_the_exception_that_follows():
    source = (
        "import sys\n"
        "print('OSError: /x/fbgemm.so: undefined symbol: _ZN3c10', file=sys.stderr)\n"
        "raise RuntimeError('could not load')\n"
    )
    assert probe(source) == (None, "OSError: /x/fbgemm.so: undefined symbol: _ZN3c10")
    assert probe("raise RuntimeError('could not load')") == (None, "RuntimeError: could not load")
    assert probe("import sys; sys.exit(3)") == (None, "exit code 3")


def test_output_before_the_last_line_is_ignored():
    assert probe("print('a warning'); print('[1, 2]')") == ([1, 2], None)


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(facts_module, "_TIMEOUT_S", 0.5)
    assert probe("import time; time.sleep(60)") == (None, "no answer within 0.5 s")


def test_the_probe_sees_the_same_packages(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("x = 5\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert probe("import only_here; print(only_here.x)") == (5, None)


@pytest.mark.parametrize(("answer", "driver"), [("580.95.05\n580.95.05", "580.95.05"), ("", None)])
def test_driver_from_nvidia_smi(tmp_path, monkeypatch, answer, driver):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{answer}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    if driver is None and os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has a driver of its own")
    assert facts_module.nvidia_driver() == driver
