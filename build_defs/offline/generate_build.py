"""Writes the BUILD files of @pip: one py_library for each installed package.

A package's files enter as whole top-level folders, so a run-time tree holds a
few links however many files a package has.
"""

import hashlib
import importlib.metadata
import pathlib
import re
import sys

try:
    from packaging.requirements import Requirement
except ImportError:  # a fresh venv has pip and nothing else
    from pip._vendor.packaging.requirements import Requirement

# One of the two builds is installed and has both names: torchrec asks for the CUDA
# build, and BUILD files for the CPU build, whatever the machine has.
STAND_INS = {"fbgemm_gpu": "fbgemm_gpu_cpu", "fbgemm_gpu_cpu": "fbgemm_gpu"}

HEAD = """\
load("@rules_python//python:defs.bzl", "py_library", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

py_runtime(
    name = "py3_runtime",
    interpreter_path = "{interpreter}",
    stub_shebang = "#!{interpreter}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "py_runtime_pair",
    py3_runtime = ":py3_runtime",
)

toolchain(
    name = "python_toolchain",
    toolchain = ":py_runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

LIBRARY = """
py_library(
    name = "{name}__pkg",
    data = [
{data}    ],
    imports = ["site-packages"],
)
"""

ALIAS = """\
package(default_visibility = ["//visibility:public"])

alias(
    name = "{label}",
    actual = "//:{name}__pkg",
)

alias(
    name = "pkg",
    actual = "//:{name}__pkg",
)
"""

REQUIREMENTS = '''\
"""The helpers that rules_python's hub has under this name."""

all_requirements = {all}

def requirement(name):
    return "@{repo}//" + name.lower().replace("-", "_").replace(".", "_")
'''


def label_name(name):
    return re.sub(r"[-_.]+", "_", name).lower()


def top_level(dist, site):
    """The folders and files directly under site that belong to dist."""
    tops = set()
    for file in dist.files or ():
        if file.parts[0] not in ("..", "bin", "__pycache__") and (site / file.parts[0]).exists():
            tops.add(file.parts[0])
    return tops


def wanted(dist, extras):
    for text in dist.requires or ():
        req = Requirement(text)
        if req.marker is None or any(req.marker.evaluate({"extra": e}) for e in {"", *extras}):
            yield label_name(req.name), req.extras


def closure(root, dists):
    """root and all that it needs, extras included; names that aren't installed are left out."""
    seen, todo = set(), [(root, frozenset())]
    while todo:
        name, extras = todo.pop()
        if name not in dists:
            name = STAND_INS.get(name, name)
        if name not in dists or (name, extras) in seen:
            continue
        seen.add((name, extras))
        todo += [(n, frozenset(e)) for n, e in wanted(dists[name], extras)]
    return {name for name, _ in seen}


def main(root, repo, lock):
    root = pathlib.Path(root)
    site = root / "site-packages"
    dists = {label_name(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=[str(site)])}
    tops = {name: top_level(dist, site) for name, dist in dists.items()}
    for build in (*site.glob("*/BUILD"), *site.glob("*/BUILD.bazel")):
        build.unlink()  # would make the folder a Bazel package of its own
    text = HEAD.format(interpreter=root / "venv/bin/python3")
    for name in sorted(dists):
        files = {f"site-packages/{top}" for n in closure(name, dists) for top in tops[n]}
        data = "".join(f'        "{f}",\n' for f in sorted(files | {"lock.sha256"}))
        text += LIBRARY.format(name=name, data=data)
        for label in {name, STAND_INS.get(name, name)}:
            (root / label).mkdir()
            (root / label / "BUILD.bazel").write_text(ALIAS.format(label=label, name=name))
    (root / "lock.sha256").write_text(hashlib.sha256(pathlib.Path(lock).read_bytes()).hexdigest() + "\n")
    (root / "BUILD.bazel").write_text(text)
    (root / "requirements.bzl").write_text(REQUIREMENTS.format(all=[f"@{repo}//{n}" for n in sorted(dists)], repo=repo))


if __name__ == "__main__":
    main(*sys.argv[1:])
