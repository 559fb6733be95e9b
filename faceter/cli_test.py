import subprocess
import sys

import pytest

import faceter
from faceter import cli


def put_tool(folder, name, source):
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    (folder / name / "main.py").write_text(source)


@pytest.fixture
def tool_folder(tmp_path, monkeypatch):
    """A folder whose packages are tools as well."""
    monkeypatch.setattr(faceter.tools, "__path__", [*faceter.tools.__path__, str(tmp_path)])
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith(("faceter.tools.fake", "faceter.tools.lame"))]:
        del sys.modules[name]


def test_arguments_and_exit_code_pass_through(tool_folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["faceter"])
    source = '"""Fakes.\n\nMore."""\nimport sys\ndef main(argv):\n    print(sys.argv[0], argv)\n    return 7\n'
    put_tool(tool_folder, "fake", source)
    assert cli.main(["fake", "--x", "1"]) == 7
    assert capsys.readouterr().out == "faceter fake ['--x', '1']\n"


def test_help_lists_each_tool_with_its_first_line(tool_folder, capsys):
    put_tool(tool_folder, "fake", '"""Fakes a tool.\n\nNot this."""\n')
    (tool_folder / "not_a_tool").mkdir()
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "fake    Fakes a tool.\n" in out
    assert "  doctor  Says what is installed" in out
    assert "Not this" not in out
    assert "not_a_tool" not in out


@pytest.mark.parametrize("argv", [["nosuch"], [], ["--nosuch"], ["launch"], ["../doctor"]])
def test_unknown_tool(argv, capsys):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "doctor" in captured.err
    if argv:
        assert repr(argv[0]) in captured.err


def test_missing_package_names_doctor(tool_folder, capsys):
    put_tool(tool_folder, "lame", "import no_such_package\n")
    assert cli.main(["lame"]) == 2
    assert "no_such_package" in (err := capsys.readouterr().err)
    assert "faceter doctor" in err


def test_a_fault_of_our_own_is_not_hidden(tool_folder):
    put_tool(tool_folder, "lame", "import faceter.no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match=r"faceter\.no_such_module"):
        cli.main(["lame"])


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"faceter {faceter.__version__}\n"


def test_help_imports_nothing_heavy():
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from faceter import cli; cli.main(['--help'])\n"
        "assert not {'torch', 'numpy', 'rich'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
