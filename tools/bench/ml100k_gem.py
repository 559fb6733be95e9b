"""The default training of GEM on MovieLens-100K, once for each seed: one line of docs/results.md's table.

    python -m faceter.tools.bench.ml100k_gem
    python -m faceter.tools.bench.ml100k_gem --seeds 0 1 2 --out runs/seeds -- --epochs 4

Each seed is `faceter train --seed S` in a process of its own, as a user would run it; what follows `--` is passed on.
The columns are those of `faceter.tools.bench.ml100k_baselines`; seconds are those of the whole command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faceter.tools.bench.ml100k_table import Result, header, row

TASK = "like"


def result(metrics: dict, seconds: float) -> Result:
    """From a run's metrics.json."""
    valid, test = (metrics[part][TASK]["all"] for part in ("valid", "test"))
    return Result(valid["auc"], test["auc"], test["ne"], seconds)


def train(seed: int, out: Path, options: list[str]) -> Result:
    """One run; its own output goes to `<out>.log`.

    Raises:
        subprocess.CalledProcessError: the training failed.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "faceter.tools.train.main", "--seed", str(seed), "--out", str(out), *options]
    with out.with_suffix(".log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return result(json.loads((out / "metrics.json").read_text()), time.perf_counter() - start)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="folder for the runs; a temporary one if left out")
    parser.add_argument("options", nargs="*", help="after `--`: options of faceter train")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        for seed in args.seeds:
            out = folder / f"seed-{seed}"
            try:
                results.append(train(seed, out, args.options))
            except subprocess.CalledProcessError as error:
                print(out.with_suffix(".log").read_text()[-4000:], file=sys.stderr)
                print(f"ml100k_gem: seed {seed} ended with exit code {error.returncode}", file=sys.stderr)
                return 1
            print(row(f"GEM, seed {seed}", results[-1:]), flush=True)
    print(header())
    print(row("GEM", results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
