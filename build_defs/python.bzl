"""Macros shared by every BUILD file of this repo."""

load("@rules_python//python:defs.bzl", "py_test")

_MAIN = "//build_defs:pytest_main.py"

def pytest_test(name, srcs, deps = [], data = [], args = [], conftest = [], **kwargs):
    """A py_test whose srcs are run by pytest.

    Args:
      name: target name.
      srcs: *_test.py files; each is handed to pytest.
      deps: libraries under test and @pip packages; @pip//pytest is added.
      data: run-time files.
      args: further pytest arguments.
      conftest: conftest.py and helper files, importable but not collected.
      **kwargs: passed to py_test (size, timeout, shard_count, tags, env, ...).
    """
    py_test(
        name = name,
        srcs = [_MAIN] + srcs + conftest,
        main = _MAIN,
        args = ["$(rootpath %s)" % src for src in srcs] + args,
        data = data,
        deps = deps + (["@pip//pytest"] if "@pip//pytest" not in deps else []),
        legacy_create_init = 0,
        **kwargs
    )
