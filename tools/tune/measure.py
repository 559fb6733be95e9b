"""Times every candidate of every kernel on the workloads."""

from __future__ import annotations

import multiprocessing
import re
from dataclasses import asdict

import torch

from faceter.kernels import tuning
from faceter.kernels.configs import architecture
from faceter.tools.tune.workloads import workloads


def measure(device: torch.device, only: str, processes: int) -> dict:
    """The times of all candidates.

    Args:
        device: a GPU.
        only: a regular expression that names of workloads must match.
        processes: compile side by side, before anything is timed.

    Returns:
        arch, device, torch, and times: of each a key, a config and milliseconds.
    """
    if processes > 1:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        parts = [context.Process(target=_compile, args=(device, only, i, processes)) for i in range(processes)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
    with tuning.recording() as times:
        for name, run in _chosen(device, only):
            before = len(times)
            run()
            print(f"{name}: {len(times) - before} times", flush=True)
    return {
        "arch": architecture(device),
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "times": [asdict(t) for t in times],
    }


def _chosen(device: torch.device, only: str):
    return [(name, run) for name, run in workloads(device) if re.search(only, name)]


def _compile(device: torch.device, only: str, part: int, parts: int) -> None:
    with tuning.compiling(part, parts):
        for _, run in _chosen(device, only):
            run()
