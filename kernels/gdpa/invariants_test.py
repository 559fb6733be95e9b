"""What must hold of GDPA whatever its numbers are."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.gdpa.testing_gdpa import exact
from faceter.kernels.testing_bounds import assert_within
from faceter.kernels.testing_devices import CASES, FEW_EXAMPLES
from faceter.kernels.testing_problems import offsets_of, problems

each_case = pytest.mark.parametrize("case", [c for c in CASES if c.impl != "reference"], ids=str)


def rows_for(case):
    """At most so many rows of an example: more than one tile of any kernel, but the interpreter is slow."""
    return 70 if (case.impl, case.device) == ("triton", "cpu") else case.most


def run(problem, case, grad=None, activation="gelu"):
    """[o, dq, dk, dv]."""
    inputs = [x.detach().requires_grad_() for x in problem.tensors]
    o = gdpa(*inputs, **problem.options, activation=activation, impl=case.impl)
    if grad is None:
        grad = torch.ones_like(o)
    return [o.detach(), *torch.autograd.grad(o, inputs, grad)]


def self_problems(case):
    return problems((case.dtype,), case.device, rows_for(case), case.dims, same_offsets=True)


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_examples_never_see_each_other_even_if_one_is_nan(case, data):
    problem = data.draw(self_problems(case))
    batch = len(problem.q_offsets) - 1
    if batch == 0:
        return
    offsets = problem.q_offsets.tolist()
    b = data.draw(st.integers(0, batch - 1))
    mine = slice(offsets[b], offsets[b + 1])
    before = run(problem, case)
    spoilt = [x.clone() for x in problem.tensors]
    for x in spoilt:
        x[mine] = float("nan")
    after = run(dataclasses.replace(problem, q=spoilt[0], k=spoilt[1], v=spoilt[2]), case)
    others = torch.ones(len(problem.q), dtype=torch.bool, device=case.device)
    others[mine] = False
    for x, y in zip(before, after, strict=True):
        assert torch.equal(x[others], y[others])


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_rows_past_the_last_example_never_matter_and_come_out_zero(case, data):
    problem = data.draw(self_problems(case))
    end = int(problem.q_offsets[-1])
    padded = [torch.cat([x[:end], x.new_full((40, *x.shape[1:]), float("nan"))]) for x in problem.tensors]
    grad = torch.ones_like(padded[0])
    grad[end:] = float("nan")
    results = run(dataclasses.replace(problem, q=padded[0], k=padded[1], v=padded[2]), case, grad)
    q, k, v = (x[:end].contiguous() for x in problem.tensors)
    bare = run(dataclasses.replace(problem, q=q, k=k, v=v), case)
    for x, y in zip(results, bare, strict=True):
        assert torch.equal(x[:end], y)
        assert (x[end:] == 0).all()


def rows_of_examples(offsets, order):
    """Row numbers of the examples in this order."""
    parts = [torch.arange(offsets[b], offsets[b + 1]) for b in order]
    return torch.cat([*parts, torch.arange(0)])


def assert_same(case, actual, expected, problem):
    """Bit for bit where a row's sums do not depend on the batch; on the CPU they do: blocks are padded together."""
    if case.impl == "triton":
        for x, y in zip(actual, expected, strict=True):
            assert torch.equal(x, y)
        return
    right = exact(problem, "gelu", torch.ones_like(actual[0]))
    for x, name in zip(actual, ("o", "dq", "dk", "dv"), strict=True):
        assert_within(x, right.values[name], right.bounds[name], name)


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_permuting_examples_permutes_the_results(case, data):
    problem = data.draw(self_problems(case))
    offsets = problem.q_offsets.tolist()
    order = data.draw(st.permutations(range(len(offsets) - 1)))
    index = rows_of_examples(offsets, order).to(case.device)
    lengths = [offsets[b + 1] - offsets[b] for b in order]
    moved = offsets_of(lengths, problem.q_offsets.dtype, case.device)
    permuted = dataclasses.replace(
        problem, q=problem.q[index], k=problem.k[index], v=problem.v[index], q_offsets=moved, kv_offsets=moved
    )
    assert_same(case, run(permuted, case), [x[index] for x in run(problem, case)], permuted)


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_splitting_a_batch_in_two_changes_nothing(case, data):
    problem = data.draw(self_problems(case))
    offsets = problem.q_offsets
    cut = data.draw(st.integers(0, len(offsets) - 1))
    row = int(offsets[cut])
    whole = run(problem, case)
    for rows, part in ((slice(0, row), offsets[: cut + 1]), (slice(row, int(offsets[-1])), offsets[cut:] - row)):
        half = dataclasses.replace(
            problem, q=problem.q[rows], k=problem.k[rows], v=problem.v[rows], q_offsets=part, kv_offsets=part
        )
        assert_same(case, run(half, case), [x[rows] for x in whole], half)


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_every_run_gives_the_same_bits(case, data):
    problem = data.draw(problems((case.dtype,), case.device, rows_for(case), case.dims))
    first = run(problem, case)
    for _ in range(9 if case.device == "cuda" else 2):
        for x, y in zip(run(problem, case), first, strict=True):
            assert torch.equal(x, y)


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_identity_is_linear_in_q_and_v(case, data):
    if case.dtype in (torch.float16, torch.bfloat16):
        return  # what is added up below would be rounded first
    problem = data.draw(problems((case.dtype,), case.device, rows_for(case), case.dims))

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


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_causal_is_a_window_to_the_left(case, data):
    problem = data.draw(problems((case.dtype,), case.device, rows_for(case), case.dims))
    options = {**problem.options, "window": (None, None)}
    causal = gdpa(*problem.tensors, **options, causal=True, impl=case.impl)
    windowed = gdpa(*problem.tensors, **{**options, "window": (None, 0)}, impl=case.impl)
    assert torch.equal(causal, windowed)


@each_case
@settings(max_examples=FEW_EXAMPLES)
@given(data=st.data())
def test_a_shared_side_is_the_same_rows_for_every_example(case, data):
    problem = data.draw(problems((case.dtype,), case.device, rows_for(case), case.dims))
    batch = next((len(o) - 1 for o in (problem.q_offsets, problem.kv_offsets) if o is not None), None)
    if batch is None:
        batch = next(x.shape[0] for x in problem.tensors if x.dim() == 4)

    def spread(x, offsets):
        return x if offsets is not None or x.dim() == 4 else x.expand(batch, *x.shape).contiguous()

    q = spread(problem.q, problem.q_offsets)
    k, v = (spread(x, problem.kv_offsets) for x in (problem.k, problem.v))
    dense = dataclasses.replace(problem, q=q, k=k, v=v)
    assert torch.equal(run(dense, case)[0], run(problem, case)[0])
