"""Every implementation of GDPA against the definition in float64, forward and backward, on drawn inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.kernels.activations import ACTIVATIONS
from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.gdpa.testing_gdpa import exact
from faceter.kernels.testing_bounds import assert_within
from faceter.kernels.testing_devices import CASES, EXAMPLES
from faceter.kernels.testing_problems import problems


@st.composite
def activations(draw, heads):
    if draw(st.booleans()):
        return draw(st.sampled_from(list(ACTIVATIONS)))
    return ",".join(draw(st.lists(st.sampled_from(list(ACTIVATIONS)), min_size=heads, max_size=heads)))


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_forward_and_gradients_are_within_what_rounding_explains(case, data):
    problem = data.draw(problems((case.dtype,), case.device, case.most, case.dims))
    activation = data.draw(activations(problem.q.shape[-2]))
    inputs = [x.detach().requires_grad_(need) for x, need in zip(problem.tensors, problem.needs, strict=True)]
    o = gdpa(*inputs, **problem.options, activation=activation, impl=case.impl)
    generator = torch.Generator().manual_seed(problem.seed)
    grad = torch.randn(o.shape, generator=generator).to(o.device, o.dtype)
    right = exact(problem, activation, grad)
    assert o.dtype == problem.q.dtype
    assert_within(o, right.values["o"], right.bounds["o"], "o")
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(o, wanted, grad))
    for name, x in zip(("dq", "dk", "dv"), inputs, strict=True):
        if x.requires_grad:
            gradient = next(found)
            assert gradient.dtype == x.dtype
            assert_within(gradient, right.values[name], right.bounds[name], name)
