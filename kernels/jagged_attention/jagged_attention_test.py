"""Every implementation of jagged attention against the definition in float64, forward and backward, on drawn inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.kernels.jagged_attention.op import jagged_attention
from faceter.kernels.jagged_attention.testing_jagged_attention import drawn, exact
from faceter.kernels.testing_devices import CASES, EXAMPLES, poisoned_memory, with_room

each_case = pytest.mark.parametrize("case", CASES, ids=str)
HALF = settings(max_examples=max(1, EXAMPLES // 2))  # two tests, so that they can run side by side


@each_case
@HALF
@given(data=st.data())
@with_room
def test_without_a_bias_all_results_are_within_what_rounding_explains(case, data):
    check(data.draw(drawn(case, with_bias=False)), case.impl, data)


@each_case
@HALF
@given(data=st.data())
@with_room
def test_with_a_bias_all_results_are_within_what_rounding_explains(case, data):
    check(data.draw(drawn(case, with_bias=True)), case.impl, data)


def check(problem, impl, data):
    return_lse = data.draw(st.booleans())
    used = data.draw(st.sampled_from(({"o"}, {"o", "lse"}, {"lse"}))) if return_lse else {"o"}
    inputs = problem.inputs(needed=True)
    generator = torch.Generator().manual_seed(problem.seed)
    with poisoned_memory():
        o = jagged_attention(**inputs, **problem.options, return_lse=return_lse, impl=impl)
        outputs = dict(zip(("o", "lse"), o if return_lse else (o,), strict=False))
        grads = {
            name: torch.randn(x.shape, generator=generator).to(x.device, x.dtype)
            for name, x in outputs.items()
            if name in used
        }
        wanted = [name for name, x in inputs.items() if x.requires_grad]
        gradients = torch.autograd.grad(
            [outputs[name] for name in grads], [inputs[name] for name in wanted], list(grads.values())
        )
    found = {f"d{name}": gradient for name, gradient in zip(wanted, gradients, strict=True)}
    assert all(found[f"d{name}"].dtype == inputs[name].dtype for name in wanted)
    assert outputs["o"].dtype == problem.q.dtype
    exact(problem, grads).check(found | {name: x.detach() for name, x in outputs.items()})
