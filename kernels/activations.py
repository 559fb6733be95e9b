"""Elementwise activations of a score: by name, in torch, with the derivative.

All map 0 to 0: a key row of zeros adds nothing to a GDPA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def _gelu_derivative(x: Tensor) -> Tensor:
    normal = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * torch.erfc(-x / math.sqrt(2)) + x * normal


def _gelu_tanh_derivative(x: Tensor) -> Tensor:
    a, c = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(a * (x + c * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * c * x * x)


def _silu_derivative(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s + x * s * (1 - s)


def _hardswish_derivative(x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x < 3, x / 3 + 0.5, 1.0))  # of x's dtype, because x / 3 is


@dataclass(frozen=True)
class Activation:
    """An activation.

    Attributes:
        function: f.
        derivative: f', where f has one; at a kink that of torch's backward.
    """

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


ACTIVATIONS = {
    "gelu": Activation(F.gelu, _gelu_derivative),
    "gelu_tanh": Activation(lambda x: F.gelu(x, approximate="tanh"), _gelu_tanh_derivative),
    "silu": Activation(F.silu, _silu_derivative),
    "relu": Activation(F.relu, lambda x: (x > 0).to(x.dtype)),
    "relu2": Activation(lambda x: F.relu(x).square(), lambda x: 2 * F.relu(x)),
    "leaky_relu": Activation(F.leaky_relu, lambda x: torch.where(x > 0, torch.ones_like(x), 0.01)),
    "hardswish": Activation(F.hardswish, _hardswish_derivative),
    "identity": Activation(lambda x: x, torch.ones_like),
}


def names_of_heads(activation: str, heads: int) -> list[str]:
    """The activation of each head.

    Args:
        activation: one name for all heads, or a name for each, joined by commas.
        heads: their number.

    Raises:
        ValueError: an unknown name, or neither one nor `heads` of them.
    """
    names = activation.split(",")
    for name in names:
        if name not in ACTIVATIONS:
            raise ValueError(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    if len(names) not in (1, heads):
        raise ValueError(f"{len(names)} activations for {heads} heads: give one, or one for each head")
    return names * (heads // len(names))


def heads_by_activation(activation: str, heads: int) -> dict[str, list[int]]:
    """Name -> its heads, in the order of first use."""
    groups: dict[str, list[int]] = {}
    for head, name in enumerate(names_of_heads(activation, heads)):
        groups.setdefault(name, []).append(head)
    return groups
