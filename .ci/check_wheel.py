"""Compares a wheel with the checkout that it was built from: python3 check_wheel.py WHEEL ROOT.

Every module of every top-level folder that holds one must be in it as faceter.<folder>, whether or not somebody forgot
an __init__.py; tests, BUILD files and anything else must not.
"""

import pathlib
import sys
import zipfile

# Folders with Python files that are not part of the product.
NOT_SHIPPED = {"build_defs", "third_party", "docs", "build", "dist"}
DATA = {".json", ".yaml", ".typed"}


def wanted(root):
    names = set()
    for top in root.iterdir():
        if not top.is_dir() or top.is_symlink() or top.name.startswith(".") or top.name in NOT_SHIPPED:
            continue
        for path in top.rglob("*"):
            test = path.stem.endswith("_test") or path.stem.startswith(("testing_", "conftest"))
            module = path.suffix == ".py" and not test
            if "__pycache__" not in path.parts and (module or path.suffix in DATA):
                name = path.relative_to(root).as_posix()
                names.add(name if top.name == "faceter" else f"faceter/{name}")
    return names


def main(wheel, root):
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = wanted(pathlib.Path(root))
    for name in sorted(expected - there):
        print(f"not in the wheel: {name} (has its folder an __init__.py?)")
    for name in sorted(there - expected):
        print(f"should not be in the wheel: {name}")
    return int(there != expected)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
