"""Which implementation of an operator runs: the first that can, unless one is forced.

`FACETER_IMPL=name` forces one for all operators, the argument `impl` of a call for that call. One that is forced and
cannot run is an error, never a silent replacement.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

VARIABLE = "FACETER_IMPL"


class ImplementationError(RuntimeError):
    """The implementation that was asked for by name can't run here; the message says why."""


@dataclass(frozen=True)
class Problem:
    """What a choice may depend on.

    Attributes:
        device: of the tensors.
        dtype: of the tensors.
        head_dim: D.
    """

    device: torch.device
    dtype: torch.dtype
    head_dim: int

    @classmethod
    def of(cls, q: torch.Tensor) -> Problem:
        return cls(q.device, q.dtype, q.shape[-1])


@dataclass(frozen=True)
class Choice:
    """Attributes:
    name: the implementation that runs.
    refused: name -> why not, for each that would have come before it.
    """

    name: str
    refused: dict[str, str]


@dataclass(frozen=True)
class Implementation:
    """Attributes:
    name: as one forces it.
    module: where it lies; imported when it is first used.
    forward, backward: names of its functions.
    refusal: why it can't run a problem, or None.
    automatic: whether it is ever chosen without being asked for.
    """

    name: str
    module: str
    forward: str
    backward: str
    refusal: Callable[[Problem], str | None]
    automatic: bool = True

    def function(self, direction: str) -> Callable:
        return getattr(importlib.import_module(self.module), getattr(self, direction))


class Registry:
    """The implementations of one operator, best first.

    Args:
        op: its name.
        implementations: in the order of preference.
    """

    def __init__(self, op: str, implementations: list[Implementation]):
        self.op = op
        self.implementations = {i.name: i for i in implementations}

    def choose(self, problem: Problem, forced: str = "") -> Choice:
        """Which implementation runs.

        Args:
            problem: see there.
            forced: a name; empty = what FACETER_IMPL says, or the first that can.

        Raises:
            ImplementationError: the forced one is not there or cannot run, or none can.
        """
        forced = forced or os.environ.get(VARIABLE, "")
        if forced:
            if forced not in self.implementations:
                raise ImplementationError(
                    f"{self.op} has no implementation {forced!r}; there are {', '.join(self.implementations)}"
                )
            reason = self.implementations[forced].refusal(problem)
            if reason:
                raise ImplementationError(f"{self.op}: {forced!r} was asked for and can't run: {reason}")
            return Choice(forced, {})
        refused = {}
        for name, implementation in self.implementations.items():
            reason = implementation.refusal(problem)
            if reason is None and implementation.automatic:
                return Choice(name, refused)
            refused[name] = reason or "runs only when it is asked for"
        raise ImplementationError(f"{self.op}: nothing can run {problem}: {refused}")

    def run(self, direction: str, problem: Problem, forced: str, *args):
        """Calls the chosen implementation's `forward` or `backward`, without autocast: it has been applied before, and
        would cast what they compute in float32."""
        function = self.implementations[self.choose(problem, forced).name].function(direction)
        with torch.autocast(problem.device.type, enabled=False):
            return function(*args)


def always(problem: Problem) -> str | None:
    """The reference: runs anything."""
    return None


def on_cpu(problem: Problem) -> str | None:
    """Written for a CPU."""
    return None if problem.device.type == "cpu" else f"the tensors are on {problem.device}"


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def portable_triton(problem: Problem) -> str | None:
    """Plain Triton."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if problem.dtype == torch.float64:
        return "it has no float64"
    if problem.head_dim > 256:
        return f"head dim {problem.head_dim} is above 256"
    if problem.device.type == "cpu":
        return None if interpreted() else "the tensors are on the CPU (TRITON_INTERPRET=1 runs it there, slowly)"
    if problem.device.type not in ("cuda", "xpu"):
        return f"the tensors are on {problem.device}"
    if (
        problem.device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(problem.device) < (8, 0)
    ):
        return "the GPU is older than sm_80"
    return None
