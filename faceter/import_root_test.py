"""Everything is imported as faceter.<folder>, from a checkout and from Bazel's run-time tree.

.ci/run does the same with an installed wheel.
"""

import os
import pathlib
import subprocess
import sys

import pytest

import faceter

ROOT = pathlib.Path(faceter.__file__).parent.parent


def python(code, cwd, **env):
    """Run code in a fresh interpreter with this one's sys.path."""
    code = f"import sys; sys.path[:] = {[p for p in sys.path if p]!r}\n{code}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_folders_are_subpackages_and_not_top_level(tmp_path):
    code = (
        "import faceter.data, faceter.kernels, faceter.model, faceter.passes, faceter.tools.launch\n"
        "assert not {'data', 'kernels', 'model', 'passes', 'tools'} & sys.modules.keys()\n"
        "print(faceter.tools.launch.__file__)"
    )
    file = pathlib.Path(python(code, tmp_path).strip())
    assert file == ROOT / "tools" / "launch.py"


def test_import_faceter_loads_nothing_else(tmp_path):
    code = (
        "before = set(sys.modules); import faceter\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names))"
    )
    assert python(code, tmp_path).strip() == "['faceter']"


@pytest.mark.parametrize("name", sorted(set(faceter.__all__) - {"__version__"}))
def test_public_names_resolve_lazily(name):
    assert getattr(faceter, name).__name__ == name
    assert name in dir(faceter)


@pytest.mark.parametrize("name", faceter._SUBPACKAGES)
def test_subpackages_resolve_lazily(name, tmp_path):
    assert python(f"import faceter; print(faceter.{name}.__name__)", tmp_path).strip() == f"faceter.{name}"


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        faceter.nosuch  # noqa: B018


def test_without_a_build_file_it_is_a_wheel(tmp_path):
    package = tmp_path / "site" / "faceter"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(pathlib.Path(faceter.__file__).read_text())
    code = f"sys.path.insert(0, {str(package.parent)!r}); import faceter; print(len(faceter.__path__))"
    assert python(code, tmp_path).strip() == "1"
    (package / "BUILD").touch()
    assert python(code, tmp_path).strip() == "2"


def test_launch_starts_in_the_callers_folder_and_exits_with_the_result(tmp_path):
    script = tmp_path / "scripts" / "main.py"
    script.parent.mkdir()
    (script.parent / "data.py").touch()  # beside the script: must not be importable as `data`
    script.write_text(
        f"import sys; sys.path[1:] = {sys.path!r}\n"
        "import os, importlib.util\n"
        "from faceter.tools.launch import run\n"
        "def main():\n"
        "    print(os.getcwd())\n"
        "    print([p for p in sys.path if p.endswith('scripts')])\n"
        "    return 3\n"
        "run(main)\n"
    )
    (tmp_path / "caller").mkdir()
    for env, folder in (({"BUILD_WORKING_DIRECTORY": str(tmp_path / "caller")}, "caller"), ({}, ".")):
        clean = {k: v for k, v in os.environ.items() if k != "BUILD_WORKING_DIRECTORY"}
        command = [sys.executable, str(script)]
        done = subprocess.run(command, cwd=tmp_path, env={**clean, **env}, capture_output=True, text=True)
        assert done.returncode == 3, done.stderr
        assert done.stdout.splitlines() == [str((tmp_path / folder).resolve()), "[]"]
