"""The activations and their written-out derivatives."""

import pytest
import torch

from faceter.kernels.activations import ACTIVATIONS, heads_by_activation, names_of_heads

POINTS = torch.cat([torch.linspace(-40, 40, 4001), torch.linspace(-4, 4, 4001), torch.tensor([0.0, 1e-20, -1e-20])])
names = pytest.mark.parametrize("name", ACTIVATIONS)


@names
def test_the_derivative_is_that_of_autograd(name):
    x = POINTS.double().requires_grad_()
    (expected,) = torch.autograd.grad(ACTIVATIONS[name].function(x).sum(), x)
    found = ACTIVATIONS[name].derivative(x.detach())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert found.dtype == torch.float64


@names
def test_zero_stays_zero(name):
    assert ACTIVATIONS[name].function(torch.zeros(1)).item() == 0


def test_heads():
    assert names_of_heads("gelu", 3) == ["gelu"] * 3
    assert heads_by_activation("gelu,silu,gelu", 3) == {"gelu": [0, 2], "silu": [1]}
    with pytest.raises(ValueError, match="no activation 'tanh'; there are gelu"):
        names_of_heads("tanh", 1)
    with pytest.raises(ValueError, match="2 activations for 3 heads"):
        names_of_heads("gelu,silu", 3)
