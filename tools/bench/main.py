"""Benchmarks: `kernels` against their peers, and the scripts behind docs/results.md, by name."""

from __future__ import annotations

import importlib
import sys

# Each is a module beside this one, or a package with a `main`.
BENCHMARKS = {
    "kernels": "kernels.main",
    "dense_step": "dense_step",
    "ml100k_baselines": "ml100k_baselines",
    "ml100k_gem": "ml100k_gem",
    "ml100k_table": "ml100k_table",
    "reader": "reader",
}


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark and return its exit code; 2 for one that isn't there."""
    argv = sys.argv[1:] if argv is None else argv
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name not in BENCHMARKS:
        asked_for_help = name in ("-h", "--help")
        print(f"usage: faceter bench {{{','.join(BENCHMARKS)}}} ...", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    return importlib.import_module(f"faceter.tools.bench.{BENCHMARKS[name]}").main(rest) or 0


if __name__ == "__main__":
    from faceter.tools.launch import run

    run(main)
