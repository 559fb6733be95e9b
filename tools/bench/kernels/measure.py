"""Measures one workload: a row for each peer and direction."""

from __future__ import annotations

import contextlib
import gc

import torch

from faceter.tools.bench.kernels.check import Oracle, verdict
from faceter.tools.bench.kernels.peers import PEERS
from faceter.tools.bench.kernels.problems import Problem, draw
from faceter.tools.bench.kernels.timing import alternate, reason_of
from faceter.tools.bench.kernels.workloads import Workload

DIRECTIONS = ("forward", "backward", "both")
# FLOPs over those of forward: backward computes the scores again, and four products.
_FLOPS = {"forward": 1.0, "backward": 2.5, "both": 3.5}


def row(workload: Workload, peer: str, direction: str, status: str, reason: str = "", **fields) -> dict:
    """A result as it lies in the JSON. status: ok, wrong, or none with the reason."""
    head = {"family": workload.family, "workload": workload.name, "peer": peer, "direction": direction}
    return head | {"status": status, "reason": reason, **fields}


def rows_of_failure(workload: Workload, peer: str, reason: str) -> list[dict]:
    return [row(workload, peer, direction, "none", reason) for direction in DIRECTIONS]


def measure(
    workload: Workload, peers: tuple[str, ...], device: torch.device, seconds: float
) -> tuple[dict, list[dict]]:
    """(what was drawn, all rows) of a workload; seconds: of timing, for each direction."""
    torch.compiler.reset()  # a function is compiled for a few shapes only, then runs as it is
    _free(device)
    try:
        problem = draw(workload, device)
    except Exception as error:
        return {}, [r for peer in peers for r in rows_of_failure(workload, peer, reason_of(error))]
    oracle, runs, rows = Oracle(problem), {}, []
    for peer in peers:
        try:
            runs[peer] = PEERS[peer](problem)
        except Exception as error:
            rows += rows_of_failure(workload, peer, reason_of(error))
    for direction in DIRECTIONS:
        rows += _direction(problem, oracle, runs, direction, seconds)
        _free(device)
    order = {peer: i for i, peer in enumerate(peers)}
    rows.sort(key=lambda r: (order[r["peer"]], DIRECTIONS.index(r["direction"])))
    lengths = (problem.q if workload.q == "jagged" else problem.kv).lengths
    drawn = {
        "rows": int(lengths.sum()),
        "mean_length": float(lengths.double().mean()),
        "forward_flops": problem.flops(),
        "copies": len(problem.copies),
    }
    return drawn, rows


def _direction(problem: Problem, oracle: Oracle, runs: dict, direction: str, seconds: float) -> list[dict]:
    workload, calls, failures, errors = problem.workload, {}, {}, {}
    for peer, run in runs.items():
        try:
            calls[peer] = run.call(direction)
        except Exception as error:
            failures[peer] = reason_of(error)
            _free(problem.device)

    def check(peer: str, found, copy: int) -> None:
        try:
            errors[peer] = oracle.errors(runs[peer], found, copy)
        except Exception as error:
            failures[peer] = f"the check failed: {reason_of(error)}"

    timings = alternate(calls, len(problem.copies), problem.device, seconds, check)
    rows = []
    for peer, run in runs.items():
        timing = timings.get(peer)
        failure = failures.get(peer) or timing.failure
        if failure:
            rows.append(row(workload, peer, direction, "none", failure))
            continue
        wrong = verdict(errors[peer])
        ms = timing.milliseconds * run.scale
        flops, moved = _FLOPS[direction] * problem.flops(), problem.bytes(direction)
        rows.append(row(
            workload, peer, direction, "wrong" if wrong else "ok", wrong, ms=ms, samples=timing.samples,
            calls=timing.calls, tflops=flops / ms / 1e9, gbs=moved / ms / 1e6, errors=errors[peer], scale=run.scale,
            note=run.note,
        ))  # fmt: skip
    return rows


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # after an error that stays, rows say so
            torch.cuda.empty_cache()
