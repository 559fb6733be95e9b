"""Where operators are tested: in Triton's interpreter and on the CPU, and on a GPU where there is one.

FACETER_TEST_EXAMPLES sets the number of drawn problems for each operator, implementation and dtype; FACETER_TEST_LONG=1
draws large heads and long sequences too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from faceter.kernels.implementations import interpreted
from faceter.kernels.testing_problems import LARGE_DIMS, SMALL_DIMS

_LONG = os.environ.get("FACETER_TEST_LONG") == "1"
EXAMPLES = int(os.environ.get("FACETER_TEST_EXAMPLES", 100))
# Of an invariant, which runs each problem several times.
FEW_EXAMPLES = max(1, EXAMPLES // 20)


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
    return cases


CASES = _cases()
