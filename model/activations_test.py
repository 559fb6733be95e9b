import math
from typing import get_args

import pytest
import torch

from faceter.model.activations import ACTIVATIONS, activation
from faceter.model.config import Activation

DEFINITIONS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "hardswish": lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
    "identity": lambda x: x,
}


def test_every_name_of_the_configuration_is_there():
    assert tuple(ACTIVATIONS) == get_args(Activation)


@pytest.mark.parametrize("name", get_args(Activation))
def test_definition(name):
    x = torch.linspace(-5, 5, 41, dtype=torch.float64)
    want = torch.tensor([DEFINITIONS[name](v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), want)
    assert activation(name)(torch.zeros(1)).item() == 0
