"""What must hold of GDPA whatever its numbers are."""

import dataclasses

import torch

from faceter.kernels import testing_invariants as invariants
from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.gdpa.testing_gdpa import exact
from faceter.kernels.testing_bounds import assert_within
from faceter.kernels.testing_invariants import Operator, invariant

GDPA = Operator(
    outputs=lambda problem, inputs, impl: {"o": gdpa(**inputs, **problem.options, activation="gelu", impl=impl)},
    exact=lambda problem, grads: exact(problem, "gelu", grads["o"]),
)


@invariant
def test_examples_never_see_each_other_even_if_one_is_nan(case, data):
    invariants.examples_never_see_each_other_even_if_one_is_nan(GDPA, case, data)


@invariant
def test_rows_past_the_last_example_never_matter_and_come_out_zero(case, data):
    invariants.rows_past_the_last_example_never_matter_and_come_out_empty(GDPA, case, data)


@invariant
def test_permuting_examples_permutes_the_results(case, data):
    invariants.permuting_examples_permutes_the_results(GDPA, case, data)


@invariant
def test_splitting_a_batch_in_two_changes_nothing(case, data):
    invariants.splitting_a_batch_in_two_changes_nothing(GDPA, case, data)


@invariant
def test_every_run_gives_the_same_bits(case, data):
    invariants.every_run_gives_the_same_bits(GDPA, case, data)


@invariant
def test_a_shared_side_is_the_same_rows_for_every_example(case, data):
    invariants.a_shared_side_is_the_same_rows_for_every_example(GDPA, case, data)


@invariant
def test_identity_is_linear_in_q_and_v(case, data):
    if case.dtype in (torch.float16, torch.bfloat16):
        return  # what is added up below would be rounded first
    problem = data.draw(GDPA.problems(case))

    def output(q, v):
        return gdpa(q, problem.k, v, **problem.options, activation="identity", impl=case.impl)

    once = output(problem.q, problem.v)
    # Powers of two: exact in floating point.
    assert torch.equal(output(4 * problem.q, problem.v), 4 * once)
    assert torch.equal(output(problem.q, -0.5 * problem.v), -0.5 * once)
    other = torch.randn_like(problem.v)
    problem_sum = dataclasses.replace(problem, v=problem.v + other)
    right = exact(problem_sum, "identity", torch.zeros_like(once))
    both = once.double() + output(problem.q, other).double()
    # Each of the two has its own rounding.
    slack = exact(dataclasses.replace(problem, v=problem.v.abs() + other.abs()), "identity", torch.zeros_like(once))
    assert_within(both, right.values["o"], 2 * slack.bounds["o"] + right.bounds["o"], "o(v) + o(w)")


@invariant
def test_causal_is_a_window_to_the_left(case, data):
    problem = data.draw(GDPA.problems(case))
    options = {**problem.options, "window": (None, None)}
    causal = gdpa(*problem.tensors, **options, causal=True, impl=case.impl)
    windowed = gdpa(*problem.tensors, **{**options, "window": (None, 0)}, impl=case.impl)
    assert torch.equal(causal, windowed)
