"""Bazel's test contract, tried on pytest_main.py as a program of its own."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import pytest

MAIN = pathlib.Path(__file__).with_name("pytest_main.py")


def environment(**extra):
    """This process's environment without Bazel's variables, which are about the outer test."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("TEST", "XML_OUTPUT", "PYTEST", "HYPOTHESIS", "TORCHINDUCTOR"))
    }
    return {**env, "PYTHONPATH": os.pathsep.join(sys.path), **extra}


def run(tmp_path, source, *args, **env):
    test = tmp_path / "sample_test.py"
    test.write_text(source)
    command = [sys.executable, str(MAIN), str(test), *args]
    return subprocess.run(command, env=environment(**env), cwd=tmp_path, capture_output=True, text=True)


FOUR = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_n(n):\n    assert n != 2\n"


def test_failure_is_the_exit_code_and_in_the_xml(tmp_path):
    xml = tmp_path / "out.xml"
    done = run(tmp_path, FOUR, XML_OUTPUT_FILE=str(xml))
    assert done.returncode == 1
    cases = list(ElementTree.parse(xml).iter("testcase"))
    assert len(cases) == 4
    assert [case.get("name") for case in cases if case.find("failure") is not None] == ["test_n[2]"]


def test_filter_selects_and_an_empty_selection_passes(tmp_path):
    assert run(tmp_path, FOUR, TESTBRIDGE_TEST_ONLY="test_n and 1").returncode == 0
    assert run(tmp_path, FOUR, TESTBRIDGE_TEST_ONLY="nothing_has_this_name").returncode == 0


def test_a_file_without_tests_fails(tmp_path):
    assert run(tmp_path, "def helper():\n    pass\n").returncode == 5


@pytest.mark.parametrize("total", [1, 3])
def test_shards_partition_the_cases(tmp_path, total):
    seen = []
    for index in range(total):
        xml, status = tmp_path / f"{index}.xml", tmp_path / f"{index}.status"
        done = run(
            tmp_path,
            FOUR.replace("n != 2", "True"),
            TEST_TOTAL_SHARDS=str(total),
            TEST_SHARD_INDEX=str(index),
            TEST_SHARD_STATUS_FILE=str(status),
            XML_OUTPUT_FILE=str(xml),
        )
        assert done.returncode == 0
        assert status.exists()
        seen += [case.get("name") for case in ElementTree.parse(xml).iter("testcase")]
    assert sorted(seen) == [f"test_n[{n}]" for n in range(4)]


def test_home_and_caches_are_in_the_test_folder(tmp_path):
    source = (
        "import os, pathlib\n"
        "def test_home(tmp_path):\n"
        "    tmp = pathlib.Path(os.environ['TEST_TMPDIR'])\n"
        "    for path in (tmp_path, pathlib.Path.home(), os.environ['TORCHINDUCTOR_CACHE_DIR']):\n"
        "        assert pathlib.Path(path).is_relative_to(tmp)\n"
    )
    folder = tmp_path / "bazel_tmp"
    folder.mkdir()
    done = run(tmp_path, source, TEST_TMPDIR=str(folder))
    assert done.returncode == 0, done.stdout


def test_drawn_tests_have_no_deadline_and_no_chance(tmp_path):
    source = (
        "from hypothesis import given, settings, strategies as st\n"
        "@settings(max_examples=5)\n"
        "@given(st.integers())\n"
        "def test_settings(n):\n"
        "    assert settings().deadline is None\n"
        "    assert settings().derandomize\n"
    )
    done = run(tmp_path, source)
    assert done.returncode == 0, done.stdout


def test_the_own_folder_is_not_importable(tmp_path):
    source = (
        "import sys\ndef test_path():\n    assert not any(p.rstrip('/').endswith('build_defs') for p in sys.path)\n"
    )
    done = run(tmp_path, source)
    assert done.returncode == 0, done.stdout


def test_a_timeout_shows_where_it_hangs(tmp_path):
    test = tmp_path / "hang_test.py"
    test.write_text(
        "import pathlib, time\n"
        "def test_hang():\n"
        f"    pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(MAIN), str(test)], env=environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "in test_hang" in stderr
