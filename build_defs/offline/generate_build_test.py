import importlib.util
import pathlib
import re

import pytest

_path = pathlib.Path(__file__).with_name("generate_build.py")
_spec = importlib.util.spec_from_file_location("generate_build", _path)
generate_build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate_build)


def install(root, name, files, *requires):
    site = root / "site-packages"
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    files = [*files, f"{info}/METADATA", f"{info}/RECORD"]
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    (site / info / "METADATA").write_text("\n".join(lines) + "\n")
    (site / info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, "../../bin/tool"]))


def generate(root):
    """What each @pip label brings, as {label: set of top-level names in site-packages}."""
    (root / "lock.txt").write_text("a==1.0\n")
    generate_build.main(root, "pip", root / "lock.txt")
    text = (root / "BUILD.bazel").read_text()
    libraries = re.findall(r'name = "(\w+)__pkg",\n    data = \[\n(.*?)    \]', text, re.S)
    return {name: set(re.findall(r'"site-packages/([^"]+)"', data)) for name, data in libraries}


def test_a_label_brings_its_package_and_what_that_needs(tmp_path):
    install(
        tmp_path, "My.Pkg", ["my_pkg/__init__.py", "my_pkg/data/x.txt"], "dep-one>=1", "gone", "other; extra == 'x'"
    )
    install(tmp_path, "dep-one", ["dep_one.py"], "deep[x]")
    install(tmp_path, "deep", ["deep/__init__.py"], "other; extra == 'x'", "unwanted; extra == 'y'")
    install(tmp_path, "other", ["other.py"])
    install(tmp_path, "unwanted", ["unwanted.py"])
    brought = generate(tmp_path)
    assert {n for n in brought["my_pkg"] if "dist-info" not in n} == {"my_pkg", "dep_one.py", "deep", "other.py"}
    assert "dep_one-1.0.dist-info" in brought["my_pkg"]  # importlib.metadata works in a test
    assert {n for n in brought["other"] if "dist-info" not in n} == {"other.py"}
    assert (tmp_path / "my_pkg/BUILD.bazel").read_text().count("//:my_pkg__pkg") == 2


def test_a_cycle_ends(tmp_path):
    install(tmp_path, "a", ["a.py"], "b")
    install(tmp_path, "b", ["b.py"], "a")
    brought = generate(tmp_path)
    assert brought["a"] == brought["b"]


@pytest.mark.parametrize(("there", "absent"), [("cpu", ""), ("", "cpu")])
def test_either_build_of_fbgemm_has_both_labels(tmp_path, there, absent):
    there, absent = (f"fbgemm-gpu-{build}".rstrip("-") for build in (there, absent))
    install(tmp_path, "torchrec", ["torchrec/__init__.py"], "fbgemm-gpu")
    install(tmp_path, there, ["fbgemm_gpu/__init__.py"])
    assert "fbgemm_gpu" in generate(tmp_path)["torchrec"]
    for name in (there, absent):
        label, actual = (n.replace("-", "_") for n in (name, there))
        text = (tmp_path / label / "BUILD.bazel").read_text()
        assert f'name = "{label}",\n    actual = "//:{actual}__pkg"' in text


def test_packages_own_build_files_are_removed(tmp_path):
    install(tmp_path, "a", ["a/__init__.py", "a/BUILD"])
    generate(tmp_path)
    assert not (tmp_path / "site-packages/a/BUILD").exists()


def test_the_files_change_when_the_lock_does(tmp_path):
    install(tmp_path, "a", ["a.py"])
    generate(tmp_path)
    first = (tmp_path / "lock.sha256").read_text()
    (tmp_path / "other.txt").write_text("a==2.0\n")
    (tmp_path / "a/BUILD.bazel").unlink()
    (tmp_path / "a").rmdir()
    generate_build.main(tmp_path, "pip", tmp_path / "other.txt")
    assert (tmp_path / "lock.sha256").read_text() != first
