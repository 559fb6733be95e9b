"""Every implementation of block attention against the definition in float64, forward and backward, on drawn inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.kernels.block_attention.op import block_attention
from faceter.kernels.block_attention.testing_block_attention import drawn, exact
from faceter.kernels.testing_devices import CASES, EXAMPLES, poisoned_memory, with_room


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
@with_room
def test_forward_and_gradients_are_within_what_rounding_explains(case, data):
    problem = data.draw(drawn(case))
    inputs = problem.inputs(needed=True)
    wanted = [name for name, x in inputs.items() if x.requires_grad]
    generator = torch.Generator().manual_seed(problem.seed)
    with poisoned_memory():
        o = block_attention(**inputs, **problem.options, impl=case.impl)
        grad = torch.randn(o.shape, generator=generator).to(o.device, o.dtype)
        gradients = torch.autograd.grad(o, [inputs[name] for name in wanted], grad)
    assert all(x.dtype == problem.q.dtype for x in (o, *gradients))
    found = {f"d{name}": gradient for name, gradient in zip(wanted, gradients, strict=True)}
    exact(problem, {"o": grad}).check({"o": o.detach(), **found})
