"""The kernel library against its peers on one GPU: a table, JSON, pictures.

    faceter bench kernels --quick --json results.json           at most 8 minutes: the rows of docs/results.md
    faceter bench kernels --only 'gdpa-self.*s=0.5'             workloads by name; --list says which there are
    faceter bench kernels --plot results.json                   PNG for each family, from a run's JSON
    faceter bench kernels --markdown results.json               the tables, for docs/results.md
    faceter bench kernels --device cpu --tiny                   every step with toy shapes: says nothing about speed

Peers take turns, so that drift hits all of them; a number is the median of several samples of CUDA events. Inputs are
random and their copies rotate beyond the L2. Every timed result is checked against the definition, in float64, on a few
examples. Forward is under no_grad, backward is autograd's backward pass alone, fwd+bwd is a step of both. FLOPs are
4 H D times the pairs of a query and a key that there are (backward 2.5 times that), so padding is no work done. Not
timed: padding and masks of peers, and faceter's tile list, which a batch needs once (family tile-list has its cost).
× is how many times as long as faceter a peer takes; in faceter's own line, the best peer.

Exit codes: 0; 1 a result is wrong, or faceter could not compute one; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import re
import sys
import time
from pathlib import Path

import torch
import torch._functorch.config

from faceter.tools.bench.kernels import rates, report, schedule_cost
from faceter.tools.bench.kernels.measure import measure, rows_of_failure
from faceter.tools.bench.kernels.workloads import FACETER, Workload, workloads
from faceter.tools.train.mfu import peak_flops

QUICK_MINUTES = 7.0  # the last one, and the rates again, may take the eighth
_SECONDS, _QUICK_SECONDS = 2.0, 0.6


def selection(quick: bool, only: str, peers: str, tiny: bool) -> list[tuple[Workload, tuple[str, ...]]]:
    """Workloads, each with the peers that it is measured with."""
    chosen = {}
    for workload in workloads():
        names = workload.quick if quick else workload.peers
        if names is not None and re.search(only, workload.name):
            workload = workload.tiny() if tiny else workload  # of these some are the same
            names = (FACETER, *(name for name in names if re.search(peers, name)))
            chosen.setdefault(workload.name, (workload, names))
    return list(chosen.values())


def machine(device: torch.device) -> dict:
    """Where and with what."""
    cuda, peak = device.type == "cuda", peak_flops(device)
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "CPU",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "peak_tflops": peak / 1e12 if peak else None,
        "versions": {
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "Triton": triton,
            "cuDNN": torch.backends.cudnn.version() if cuda else None,
        },
    }


def run(args: argparse.Namespace, chosen: list, device: torch.device) -> dict:
    """All results; saved after each workload, if they are to be saved."""
    # Backward is timed on a graph that is kept, whose tensors it must not overwrite.
    torch._functorch.config.donated_buffer = False
    begin = time.monotonic()
    results = {"machine": machine(device), "rates": [rates.measure(device)], "workloads": {}, "rows": []}

    def add(rows: list[dict]) -> None:
        results["rows"] += rows
        report.add_shares(results)
        if args.json:
            report.save(results, args.json)

    seconds = 0.02 if args.tiny else _QUICK_SECONDS if args.quick else _SECONDS
    for workload, peers in chosen:
        minutes = (time.monotonic() - begin) / 60
        print(f"{minutes:5.1f} min  {workload.name}", file=sys.stderr, flush=True)
        if args.minutes and minutes > args.minutes:
            reason = f"not run: the {args.minutes:g} minutes were over"
            add([row for peer in peers for row in rows_of_failure(workload, peer, reason)])
            continue
        results["workloads"][workload.name], rows = measure(workload, peers, device, seconds)
        add(rows)
    if re.search(args.only, schedule_cost.WORKLOAD.name):
        add(schedule_cost.measure(device, args.tiny))
    try:
        results["rates"].append(rates.measure(device))
    except RuntimeError as error:  # the device is lost, the results are not
        print(f"the rates could not be measured again: {error}", file=sys.stderr)
    add([])
    return results


def failed(results: dict) -> bool:
    """Whether a result is wrong, or faceter has none."""
    rows = [row for row in results["rows"] if not row["reason"].startswith("not run")]
    return any(row["status"] == "wrong" or (row["status"] == "none" and row["peer"] == FACETER) for row in rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="faceter bench kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer workloads, each peer where it counts")
    parser.add_argument("--only", default="", metavar="REGEX", help="workloads whose names match")
    parser.add_argument("--peers", default="", metavar="REGEX", help="peers whose names match, beside faceter")
    parser.add_argument("--minutes", type=float, help=f"start no workload after that; --quick: {QUICK_MINUTES:g}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save all results; pictures too, with matplotlib")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy shapes")
    parser.add_argument("--list", action="store_true", help="print the workloads' names and peers")
    parser.add_argument("--plot", type=Path, metavar="JSON", help="only draw what was saved")
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="only print what was saved")
    args = parser.parse_args(argv)
    try:
        if args.plot or args.markdown:
            return _saved(args)
        chosen = selection(args.quick, args.only, args.peers, args.tiny)
    except (OSError, ValueError, re.error) as error:
        print(f"faceter bench kernels: {error}", file=sys.stderr)
        return 2
    if args.list:
        print(*(f"{workload.name}: {', '.join(names)}" for workload, names in chosen), sep="\n")
        return 0
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("faceter bench kernels: there is no GPU; --device cpu --tiny tries the steps", file=sys.stderr)
        return 2
    if args.minutes is None and args.quick:
        args.minutes = QUICK_MINUTES
    results = run(args, chosen, device)
    report.show(results)
    if args.json:
        _plot(results, args.json)
    return 1 if failed(results) else 0


def _saved(args: argparse.Namespace) -> int:
    if args.markdown:
        print(report.markdown(report.load(args.markdown)), end="")
    if args.plot:
        return 0 if _plot(report.load(args.plot), args.plot) else 2
    return 0


def _plot(results: dict, file: Path) -> bool:
    try:
        from faceter.tools.bench.kernels.plot import plot

        print(*plot(results, file.with_suffix("")), sep="\n")
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}; later: faceter bench kernels --plot {file}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    from faceter.tools.launch import run as launch

    launch(main)
