"""Chooses kernel configs: measures them on this GPU, and makes the table of a kind of GPU.

faceter tune measure times.json              # on a GPU: times every candidate
faceter tune table sm_90 times.json          # anywhere: the fastest that does not spill, into kernels/tuned/
faceter tune table sm_80                     # of a GPU that is not at hand: the first that does not spill
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"  # kernels are compiled here, before they are imported

import torch

from faceter.tools import launch


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="time every candidate on this GPU")
    measure.add_argument("times", type=Path, help="JSON file to write")
    measure.add_argument("--only", default="", help="regular expression: workloads to measure")
    table = commands.add_parser("table", help="make the table of a kind of GPU")
    table.add_argument("arch", choices=["sm_80", "sm_90", "sm_100"])
    table.add_argument("times", type=Path, nargs="?", help="JSON file of `measure`")
    for command in (measure, table):
        command.add_argument("--processes", type=int, default=os.cpu_count(), help="that compile side by side")
    args = parser.parse_args(argv)
    if args.command == "table":
        return _table(args.arch, args.times, args.processes)
    if not torch.cuda.is_available():
        print("tune: measuring needs a CUDA GPU", file=sys.stderr)
        return 2
    from faceter.tools.tune.measure import measure as run

    args.times.write_text(json.dumps(run(torch.device("cuda", 0), args.only, args.processes)))
    return 0


def _table(arch: str, times: Path | None, processes: int) -> int:
    from faceter.tools.tune.table import make_table, write_table

    try:
        measured = json.loads(times.read_text()) if times else None
    except (OSError, ValueError) as error:
        print(f"tune: {times} can't be read: {error}", file=sys.stderr)
        return 2
    if measured and measured["arch"] != arch:
        print(f"tune: {times} was measured on {measured['arch']}, not {arch}", file=sys.stderr)
        return 2
    print(write_table(arch, make_table(arch, measured, processes)))
    return 0


if __name__ == "__main__":
    launch.run(main)
