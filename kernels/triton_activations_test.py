"""The activations and derivatives in Triton kernels, exact and with the hardware's tanh."""

import pytest
import torch

from faceter.kernels.activations import ACTIVATIONS
from faceter.kernels.testing_devices import TRITON_DEVICE

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from faceter.kernels.triton_activations import activate, activate_with_derivative  # noqa: E402

pytestmark = pytest.mark.skipif(TRITON_DEVICE is None, reason="needs a GPU, or TRITON_INTERPRET=1")
POINTS = torch.cat([torch.linspace(-40, 40, 4001), torch.linspace(-4, 4, 4001), torch.tensor([0.0, 1e-20, -1e-20])])


@triton.jit
def _kernel(x, y, z, w, n, NAME: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, activate(value, NAME, FAST), mask=i < n)
    function, slope = activate_with_derivative(value, NAME, FAST)
    tl.store(z + i, function, mask=i < n)
    tl.store(w + i, slope, mask=i < n)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("fast", [False, True])
def test_values_and_derivatives(name, fast):
    if fast and TRITON_DEVICE == "cpu":
        pytest.skip("the interpreter has no hardware tanh")
    x = POINTS.float().to(TRITON_DEVICE)
    y, z, w = (torch.empty_like(x) for _ in range(3))
    _kernel[(triton.cdiv(len(x), 256),)](x, y, z, w, len(x), name, fast, 256)
    exact = x.double()
    # With tanh to 2^-11: half of that times |x| in f; in f' it is multiplied by at most 3 on the way.
    error = 2.0**-11 if fast and name in ("gelu", "gelu_tanh", "silu") else 1e-6
    value, slope = ACTIVATIONS[name].function(exact), ACTIVATIONS[name].derivative(exact)
    for found in (y, z):
        assert ((found.double() - value).abs() <= error * (exact.abs() + value.abs()) + 1e-30).all()
    away = ((exact.abs() - 3).abs() > 1e-5) if name == "hardswish" else torch.ones_like(exact, dtype=torch.bool)
    assert ((w.double() - slope).abs() <= 3 * error * (1 + slope.abs()))[away].all()
