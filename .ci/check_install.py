"""Run by the Python of a venv that faceter's wheel was installed into: does it import and start there?"""

import importlib.util
import pathlib
import subprocess
import sys

import faceter
from faceter.cli import tools

# From the wheel and not from a checkout.
assert pathlib.Path(faceter.__file__).is_relative_to(sys.prefix), faceter.__file__
assert len(faceter.__path__) == 1, faceter.__path__
assert "torch" not in sys.modules

for name in faceter._SUBPACKAGES:
    importlib.import_module(f"faceter.{name}")
    assert importlib.util.find_spec(name) is None, f"{name} is a top-level package"
for name in faceter.__all__:
    getattr(faceter, name)

command = pathlib.Path(sys.prefix, "bin", "faceter")
assert tools(), "no tools in the wheel"
for name in tools():
    subprocess.run([command, name, "--help"], check=True, stdout=subprocess.DEVNULL)
subprocess.run([command, "doctor"], check=True)
