"""Times several functions in turn, so that drift of clocks and temperature hits all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

# A sample is so many calls that it takes this long: the clocks under load, not a burst's.
_SPAN_MS, _MOST_CALLS = 10.0, 50
_MOST_ROUNDS = 15
# The GPU waits while the host gets as far ahead as it needs to be: what is timed is the device's work.
_HEAD_START_MS, _MOST_HEAD_START_MS, _CYCLES_OF_MS = 2.0, 20.0, 1_900_000


@dataclass
class Timing:
    """Attributes:
    samples: milliseconds of a call, each over `calls` calls.
    failure: why there are none, or not all.
    """

    samples: list[float] = field(default_factory=list)
    calls: int = 1
    failure: str = ""

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.samples)


def reason_of(error: Exception) -> str:
    """In one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200]


def alternate(
    calls: dict[str, Callable[[int], object]], copies: int, device: torch.device, seconds: float,
    on_result: Callable[[str, object, int], None] = lambda name, result, copy: None, device_only: bool = True,
) -> dict[str, Timing]:  # fmt: skip
    """Times each call in turn, round by round.

    Args:
        calls: name -> function of the copy of the inputs that it shall use. One that raises is left out from then on.
        copies: how many there are.
        device: whose work is timed.
        seconds: all rounds together, about; three rounds at least.
        on_result: gets each call's name, last timed result and its copy.
        device_only: False = one call at a time, with the time that the host takes to launch it.
    """
    timings = {name: Timing() for name in calls}
    turn = dict.fromkeys(calls, 0)

    def sample(name: str, count: int) -> tuple[float, object, int, float] | None:
        first, turn[name] = turn[name], turn[name] + count
        try:
            return _sample(calls[name], first, count, copies, device, head_start[name])
        except Exception as error:  # whatever a peer raises is a row, not the end
            timings[name].failure = reason_of(error)
            return None

    head_start, expected = dict.fromkeys(calls, _HEAD_START_MS * device_only), {}
    for name in calls:
        if sample(name, 1) is None:  # compiles
            continue
        found = sample(name, 1)
        if found is not None:
            count = max(1, min(_MOST_CALLS, math.ceil(_SPAN_MS / max(found[0], 1e-3))))
            timings[name].calls = count if device_only else 1
            expected[name] = timings[name].calls * found[0]
            if device_only:
                behind = max(0.0, found[3] - found[0]) * count
                head_start[name] = min(_MOST_HEAD_START_MS, 0.2 + 1.2 * behind)
        del found
    rounds = max(3, min(_MOST_ROUNDS, int(1e3 * seconds / max(1e-3, sum(expected.values())))))
    for i in range(rounds):
        for name in expected:
            timing = timings[name]
            found = None if timing.failure else sample(name, timing.calls)
            if found is None:
                continue
            timing.samples.append(found[0])
            if i == rounds - 1:
                on_result(name, found[1], found[2])
            del found
    return timings


def _sample(
    call, first: int, count: int, copies: int, device: torch.device, head_start: float
) -> tuple[float, object, int, float]:
    """(milliseconds of a call, result of the last, its copy, milliseconds of a call in which the host is busy)."""
    result = None
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        if head_start:
            torch.cuda._sleep(int(head_start * _CYCLES_OF_MS))
        events[0].record()
    begin = time.perf_counter()
    for i in range(count):
        result = call((first + i) % copies)
    host = 1e3 * (time.perf_counter() - begin) / count
    device_time = host
    if device.type == "cuda":
        events[1].record()
        torch.cuda.synchronize()
        device_time = events[0].elapsed_time(events[1]) / count
    return device_time, result, (first + count - 1) % copies, host
