"""Elementwise activations by name: those of `faceter.model.config.Activation`.

Every one maps 0 to 0, so rows of zeros (padding) stay zero through GDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

import torch.nn.functional as F
from torch import Tensor

from faceter.model.config import Activation, ConfigError


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2 (Primer, arXiv 2109.08668)."""
    return F.relu(x).square()


def identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "relu2": relu2,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "identity": identity,
}


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    """The function of a name.

    Raises:
        ConfigError: no such activation; the message lists those there are.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"no activation {name!r}; there are {', '.join(get_args(Activation))}")
    return ACTIVATIONS[name]
