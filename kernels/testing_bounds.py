"""How far from the exact result an operator may be, element by element: a first-order rounding analysis.

u is the unit roundoff of the inputs' dtype (bfloat16 2^-8, float16 2^-11, float32 2^-24), a that of the accumulator
(float32; of float64 inputs float64). What is allowed is what unfused torch operations do that accumulate in `a`: every
intermediate (scores, activations or probabilities, their gradients, the result) is rounded to the inputs' dtype at most
twice, and a sum of n products has the error n a times the sum of their absolute values. These errors are carried
forward with the derivatives' absolute values, all in float64. Nothing in it is fitted to an implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDINGS = 2


@dataclass(frozen=True)
class Precision:
    """Attributes:
    u: unit roundoff of the dtype.
    a: of the accumulator.
    tiny: half the smallest subnormal number of the dtype: the error of a rounding to nearly nothing.
    """

    u: float
    a: float
    tiny: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        info = torch.finfo(dtype)
        a = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2
        return cls(info.eps / 2, a, info.tiny * info.eps / 2)

    def rounded(self, x: Tensor) -> Tensor:
        """Error of rounding x."""
        return ROUNDINGS * (self.u * x.abs() + self.tiny)

    def summed(self, n: int, absolute: Tensor) -> Tensor:
        """Error of a sum of n products whose absolute values sum to `absolute`."""
        return (n + 4) * self.a * absolute


@dataclass
class Exact:
    """Attributes:
    values: name of an output or gradient ("o", "dq", ..) -> float64.
    bounds: likewise, the largest error that rounding explains.
    """

    values: dict[str, Tensor]
    bounds: dict[str, Tensor]

    def check(self, found: dict[str, Tensor]) -> None:
        """Fails where what was found is out of bounds."""
        for name, x in found.items():
            assert_within(x, self.values[name], self.bounds[name], name)


def assert_within(actual: Tensor, expected: Tensor, bound: Tensor, what: str) -> None:
    """Fails where |actual - expected| > bound, or where `actual` is not a number. Infinity must be itself."""
    assert actual.shape == expected.shape, f"{what} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.numel() == 0:
        return
    error = torch.where(actual == expected, 0.0, (actual.double() - expected).abs())
    bad = ~(error <= bound)  # not error > bound: NaN must fail
    if bad.any():
        ratio = torch.where(error.isnan(), float("inf"), error / bound.clamp(min=1e-300))
        at = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} elements out of bounds; worst at {at}: {float(actual[at])} "
            f"instead of {float(expected[at])}, {float(ratio[at]):.3g} times what is allowed"
        )
