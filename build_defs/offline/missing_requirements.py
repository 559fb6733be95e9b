"""Prints what installed packages ask for and don't find, one requirement a line.

python3 missing_requirements.py SITE_PACKAGES NAME...

NAME is asked about, and no other package: torchrec and recbole ask for much that
faceter leaves out on purpose.
"""

import importlib.metadata
import re
import sys

try:
    from packaging.requirements import Requirement
except ImportError:  # a fresh venv has pip and nothing else
    from pip._vendor.packaging.requirements import Requirement


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


def main(site, *names):
    dists = {normal(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=[site])}
    lines = [line for name in names for line in missing(dists[normal(name)].requires or (), dists)]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
