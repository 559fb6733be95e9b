"""Where operators are tested: in Triton's interpreter and on the CPU, and on a GPU where there is one.

FACETER_TEST_EXAMPLES sets the number of drawn problems for each operator, implementation and dtype; FACETER_TEST_LONG=1
draws large heads and long sequences too. FACETER_TEST_DEVICE=cuda leaves out what runs on the CPU; without a GPU that
leaves nothing, and tests are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

# A config for each drawn head dim and variant is not worth its tuning.
os.environ.setdefault("FACETER_TUNE", "0")

from faceter.kernels.implementations import interpreted
from faceter.kernels.testing_problems import LARGE_DIMS, SMALL_DIMS

_DEVICE = os.environ.get("FACETER_TEST_DEVICE", "")
_LONG = os.environ.get("FACETER_TEST_LONG") == "1"
EXAMPLES = int(os.environ.get("FACETER_TEST_EXAMPLES", 100))
# Of an invariant, which runs each problem several times; in Triton's interpreter. The first one drawn is the smallest
# that there is.
SOME_EXAMPLES, FEW_EXAMPLES = 1 + EXAMPLES // 4, 1 + EXAMPLES // 25


@dataclass(frozen=True)
class Case:
    """One implementation on one device in one dtype, and what is drawn for it: rows of an example, head dims."""

    impl: str
    device: str
    dtype: torch.dtype
    most: int
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.impl}-{self.device}-{str(self.dtype).removeprefix('torch.')}"


# Where Triton kernels can run here, or None.
TRITON_DEVICE = "cpu" if interpreted() else "cuda" if torch.cuda.is_available() else None


def _cases() -> list[Case]:
    dims = SMALL_DIMS + (LARGE_DIMS if _LONG else ())
    floats = (torch.float32, torch.float16, torch.bfloat16)
    cases = [Case(impl, "cpu", dtype, 130, dims) for impl in ("reference", "cpu") for dtype in (torch.float64, *floats)]
    if TRITON_DEVICE == "cpu":
        cases += [Case("triton", "cpu", dtype, 200 if _LONG else 130, dims) for dtype in floats]
    elif TRITON_DEVICE:
        large = SMALL_DIMS + LARGE_DIMS
        cases += [Case("triton", "cuda", dtype, 2000 if _LONG else 300, large) for dtype in floats]
    return [case for case in cases if _DEVICE in ("", case.device)]


CASES = _cases()
# Where an operator is called whatever implementation runs.
DEVICES = [device for device in ("cpu", "cuda") if _DEVICE in ("", device)]
if not torch.cuda.is_available():
    DEVICES = [device for device in DEVICES if device == "cpu"]


def with_room(test: Callable) -> Callable:
    """The same test, in less time where Triton's interpreter runs in it.

    CPython keeps the frames of calls in chunks of 16 KiB, and maps and unmaps one whenever calls cross a border; the
    interpreter does so thousands of times a second. A frame that says that it needs much gets a large chunk, and what
    it does not use of that is left for the calls below it.
    """

    @functools.wraps(test)
    def call(*args, **kwargs):
        return test(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=1 << 16)
    return call


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within it, memory that has not been written is NaN, or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # This fills what torch.empty and its likes return (torch.utils.deterministic.fill_uninitialized_memory, on by
    # default).
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
