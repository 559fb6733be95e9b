"""Starts a tool's ``main`` from its ``main.py``, under Bazel or by hand."""

import os
import sys
from collections.abc import Callable


def run(main: Callable[[], int]) -> None:
    """Call ``main()`` in the folder that the person stands in and exit with what it returns.

    ``bazel run`` starts a program in its run-time tree and names the caller's folder in
    ``BUILD_WORKING_DIRECTORY``: relative paths on the command line mean that one.
    """
    # Python puts the script's own folder first, where `train` or `data` would be top-level modules.
    here = os.path.realpath(os.path.dirname(sys.modules["__main__"].__file__ or ""))
    sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != here]
    folder = os.environ.get("BUILD_WORKING_DIRECTORY")
    if folder:
        os.chdir(folder)
    sys.exit(main())
