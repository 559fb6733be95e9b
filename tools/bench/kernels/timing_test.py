"""Turns, failures, and the device's clock."""

from types import SimpleNamespace

import pytest
import torch

from faceter.tools.bench.kernels import timing
from faceter.tools.bench.kernels.timing import alternate

CPU = torch.device("cpu")


def test_calls_take_turns_and_go_through_the_copies(monkeypatch):
    monkeypatch.setattr(timing, "_SPAN_MS", 0.0)  # one call for each sample
    seen, results = [], {}
    calls = {name: lambda copy, name=name: seen.append((name, copy)) or (name, copy) for name in "ab"}
    found = alternate(calls, 3, CPU, 0.0, lambda name, result, copy: results.setdefault(name, (result, copy)))
    assert "".join(name for name, _ in seen) == "aabb" + "ab" * 3  # to warm up, then three rounds
    assert [copy for name, copy in seen if name == "a"] == [0, 1, 2, 0, 1]
    assert {name: len(t.samples) for name, t in found.items()} == {"a": 3, "b": 3}
    assert results == {"a": (("a", 1), 1), "b": (("b", 1), 1)}


def test_one_that_fails_is_left_out_and_says_why():
    left = iter([1, 2, 3])

    def tires(copy):
        if next(left, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to ...")

    def raises(copy):
        raise ValueError("\nno such shape\nand more")

    found = alternate({"raises": raises, "tires": tires, "runs": lambda copy: copy}, 1, CPU, 0.0)
    assert found["raises"].failure == "ValueError: no such shape"
    assert found["tires"].failure == "out of memory"
    assert found["runs"].failure == ""
    assert len(found["runs"].samples) >= 3


@pytest.mark.parametrize("device_only", [True, False])
def test_on_a_gpu_events_tell_the_time(monkeypatch, device_only):
    """With a clock of our own in place of the GPU's: each call takes 2 ms of it."""
    clock, naps = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, other):
            return other.at - self.at

    def call(copy):
        clock[0] += 2.0
        return copy

    fake = SimpleNamespace(Event=Event, synchronize=lambda: None, _sleep=naps.append)
    monkeypatch.setattr(timing.torch, "cuda", fake)
    found = alternate({"call": call}, 2, torch.device("cuda"), 0.1, device_only=device_only)["call"]
    assert found.milliseconds == 2.0
    assert found.calls == (5 if device_only else 1)  # of 10 ms
    assert bool(naps) == device_only
    assert len(found.samples) == (10 if device_only else 15)
