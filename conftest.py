"""pytest in a checkout; under Bazel build_defs/pytest_main.py does the like."""

import hypothesis

# Speed is for benchmarks to judge: a busy machine must not fail a test.
hypothesis.settings.register_profile("faceter", deadline=None)
hypothesis.settings.load_profile("faceter")
