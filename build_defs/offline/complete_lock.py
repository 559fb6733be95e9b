"""Prints what this machine needs on top of the lock, one requirement a line.

python3 complete_lock.py deps SITE_PACKAGES NAME...   what installed packages ask for and don't find
python3 complete_lock.py fbgemm SITE_PACKAGES LOCK    the locked fbgemm, in the build that fits torch and driver

The lock serves torch's CPU build and its CUDA build alike; these two questions have an answer only when one of them
is installed.  No NAME beyond torch is of use: torchrec and recbole ask for much that faceter leaves out on purpose.
"""

import importlib.metadata
import pathlib
import re
import sys

try:
    from packaging.requirements import Requirement
except ImportError:  # a fresh venv has pip and nothing else
    from pip._vendor.packaging.requirements import Requirement

DRIVER = pathlib.Path("/proc/driver/nvidia/version")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(requires, installed):
    """The members of requires that apply here (no extras) and whose package is not in installed."""
    found = []
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if normal(requirement.name) not in installed:
            requirement.marker = None
            found.append(str(requirement))
    return found


def deps(site, *names):
    dists = {normal(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=[site])}
    return [line for name in names for line in missing(dists[normal(name)].requires or (), dists)]


def fbgemm(site, lock):
    """The CUDA build of fbgemm needs torch's CUDA libraries and the driver's; the CPU build loads on any torch."""
    version = re.search(r"^fbgemm-gpu-cpu==(\S+)", pathlib.Path(lock).read_text(), re.M)[1]
    cuda = re.search(r"^cuda\b.*= '", pathlib.Path(site, "torch", "version.py").read_text(), re.M)
    return [f"fbgemm-gpu=={version}" if cuda and DRIVER.exists() else f"fbgemm-gpu-cpu=={version}"]


if __name__ == "__main__":
    sys.stdout.write("\n".join({"deps": deps, "fbgemm": fbgemm}[sys.argv[1]](*sys.argv[2:])))
