"""Lists the packages of the wheel; everything else about it is in pyproject.toml.

Each folder at the top of the repo that is a Python package goes into the wheel as faceter.<folder>, with all packages
under it.  setuptools can't be told so in pyproject.toml without naming every single one.
"""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).parent


def package_folders() -> dict[str, str]:
    """Folder of each package, by the name it is imported as."""
    folders = {}
    for top in sorted(init.parent for init in ROOT.glob("*/__init__.py")):
        for init in sorted(top.rglob("__init__.py")):
            path = init.parent.relative_to(ROOT)
            name = ".".join(path.parts)
            folders[name if top.name == "faceter" else f"faceter.{name}"] = path.as_posix()
    return folders


class BuildWithoutTests(build_py):
    """Leaves out the tests and what they share (testing_*.py), which lie beside the code."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [m for m in modules if not m[1].endswith("_test") and not m[1].startswith(("testing_", "conftest"))]


folders = package_folders()
setup(
    packages=list(folders),
    package_dir=folders,
    package_data={"": ["*.json", "*.yaml", "py.typed"]},
    include_package_data=False,
    cmdclass={"build_py": BuildWithoutTests},
)
