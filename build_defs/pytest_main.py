"""Entry point of every pytest_test target: pytest under Bazel's test contract.

https://bazel.build/reference/test-encyclopedia names the variables used here.
"""

import faulthandler
import importlib.util
import os
import pathlib
import signal
import sys

import pytest


class _Shard:
    """Keeps every total-th test, starting at the index-th, in collection order."""

    def __init__(self, index, total):
        self.index = index
        self.total = total

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        mine = items[self.index :: self.total]
        if len(mine) != len(items):
            kept = set(map(id, mine))
            config.hook.pytest_deselected(items=[i for i in items if id(i) not in kept])
            items[:] = mine


def main(argv):
    env = os.environ
    # A test that outlives its timeout gets SIGTERM first: show where it hangs,
    # on the stderr of now (pytest puts its own in place).
    stderr = os.fdopen(os.dup(2), "w")
    faulthandler.register(signal.SIGTERM, file=stderr, all_threads=True, chain=True)
    args = [
        "-p",
        "no:cacheprovider",  # the run-time tree is read-only
        "--import-mode=importlib",
        "--rootdir=" + os.getcwd(),
        "-ra",
    ]
    plugins = []
    # Python puts this script's own folder first on sys.path, symlinks resolved:
    # a folder of the source tree that no target names.
    here = {os.path.dirname(os.path.realpath(__file__)), os.path.dirname(os.path.abspath(__file__))}
    sys.path[:] = [p for p in sys.path if p not in here]
    if env.get("TEST_TMPDIR"):
        env["HOME"] = env["TEST_TMPDIR"]  # the real one is read-only in a sandbox
        args.append("--basetemp=" + os.path.join(env["TEST_TMPDIR"], "pytest"))
        env.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(env["TEST_TMPDIR"], "hypothesis"))
        env.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(env["TEST_TMPDIR"], "inductor"))
    if importlib.util.find_spec("hypothesis"):
        # No deadline (a busy machine is not a fault) and the same examples every time: Bazel keeps the result
        # of a test until its inputs change.  pytest in a checkout draws new ones (conftest.py).
        args.append("--hypothesis-profile=ci")
    if env.get("XML_OUTPUT_FILE"):
        args.append("--junitxml=" + env["XML_OUTPUT_FILE"])
    if env.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter=EXPR
        args += ["-k", env["TESTBRIDGE_TEST_ONLY"]]
    if env.get("TESTBRIDGE_TEST_RUNNER_FAIL_FAST") == "1":
        args.append("--exitfirst")
    total = int(env.get("TEST_TOTAL_SHARDS") or 1)
    if env.get("TEST_SHARD_STATUS_FILE"):  # tells Bazel that shards are honoured
        pathlib.Path(env["TEST_SHARD_STATUS_FILE"]).touch()
    if total > 1:
        plugins.append(_Shard(int(env["TEST_SHARD_INDEX"]), total))
    code = pytest.main(args + argv, plugins=plugins)
    chosen = total > 1 or "TESTBRIDGE_TEST_ONLY" in env
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and chosen:
        code = 0  # this shard or filter left nothing to run in this target
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
