"""The ``faceter`` command: ``faceter TOOL ...`` runs ``faceter.tools.TOOL.main.main``.

A tool is any package under ``faceter.tools`` with a ``main.py``; the first line of that file's docstring is its help.
Only the tool that is asked for is imported.
"""

import ast
import importlib
import pathlib
import sys

import faceter
import faceter.tools


def tools() -> dict[str, str]:
    """One line of help for each tool, by name."""
    found = {}
    for folder in faceter.tools.__path__:
        for main in pathlib.Path(folder).glob("*/main.py"):
            doc = ast.get_docstring(ast.parse(main.read_text(encoding="utf-8"))) or ""
            found[main.parent.name] = doc.partition("\n")[0]
    return dict(sorted(found.items()))


def usage() -> str:
    found = tools()
    width = max(map(len, found), default=0)
    lines = [f"  {name:{width}}  {text}" for name, text in found.items()]
    return "\n".join(
        ["usage: faceter TOOL [options]", "", *lines, "", "faceter TOOL --help says more.  faceter --version"]
    )


def main(argv: list[str] | None = None) -> int:
    """Run one tool and return its exit code; 2 for a tool that isn't there or lacks a package."""
    argv = sys.argv[1:] if argv is None else argv
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"faceter {faceter.__version__}")
        return 0
    if name not in tools():
        print(f"faceter: no tool {name!r}" if name else "faceter: which tool?", file=sys.stderr)
        print(usage(), file=sys.stderr)
        return 2
    sys.argv[0] = f"faceter {name}"  # what the tool's own messages call it
    try:
        return importlib.import_module(f"faceter.tools.{name}.main").main(rest)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "faceter":
            raise
        print(f"faceter {name}: {error}; `faceter doctor` says what to install", file=sys.stderr)
        return 2
