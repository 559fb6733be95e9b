"""What must hold of jagged attention whatever its numbers are."""

import dataclasses

import torch
from hypothesis import strategies as st

from faceter.kernels import testing_invariants as invariants
from faceter.kernels.jagged_attention.op import jagged_attention
from faceter.kernels.jagged_attention.testing_jagged_attention import biased, exact, outputs
from faceter.kernels.testing_bounds import Precision, assert_within
from faceter.kernels.testing_invariants import Operator, assert_equal, invariant
from faceter.kernels.testing_problems import offsets_of

JAGGED_ATTENTION = Operator(
    outputs=outputs,
    exact=exact,
    normalised=True,
    complete=lambda problem: st.one_of(st.just(problem), biased(problem, of_each_example=True)),
)


@invariant
def test_examples_never_see_each_other_even_if_one_is_nan(case, data):
    invariants.examples_never_see_each_other_even_if_one_is_nan(JAGGED_ATTENTION, case, data)


@invariant
def test_rows_past_the_last_example_never_matter_and_come_out_empty(case, data):
    invariants.rows_past_the_last_example_never_matter_and_come_out_empty(JAGGED_ATTENTION, case, data)


@invariant
def test_permuting_examples_permutes_the_results(case, data):
    invariants.permuting_examples_permutes_the_results(JAGGED_ATTENTION, case, data)


@invariant
def test_splitting_a_batch_in_two_changes_nothing(case, data):
    invariants.splitting_a_batch_in_two_changes_nothing(JAGGED_ATTENTION, case, data)


@invariant
def test_every_run_gives_the_same_bits(case, data):
    invariants.every_run_gives_the_same_bits(JAGGED_ATTENTION, case, data)


@invariant
def test_a_shared_side_is_the_same_rows_for_every_example(case, data):
    invariants.a_shared_side_is_the_same_rows_for_every_example(JAGGED_ATTENTION, case, data)


@invariant
def test_causal_is_a_window_to_the_left(case, data):
    problem = dataclasses.replace(data.draw(JAGGED_ATTENTION.problems(case)), window=(None, 0))
    inputs = problem.inputs()
    windowed = outputs(problem, inputs, case.impl)
    options = {**problem.options, "window": (None, None)}
    o, lse = jagged_attention(**inputs, **options, causal=True, return_lse=True, impl=case.impl)
    assert_equal({"o": o, "lse": lse}, windowed)


@invariant
def test_one_seed_pools_equal_keys_to_the_mean_of_their_values(case, data):
    heads, dim = 2, data.draw(st.sampled_from((16, 24)))
    lengths = data.draw(st.lists(st.integers(1, 130), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31 - 1)))
    seed, key, v = (
        torch.randn(n, heads, dim, generator=generator).to(case.device, case.dtype) for n in (1, 1, sum(lengths))
    )
    offsets = offsets_of(lengths, device=case.device)
    options = {"kv_offsets": offsets, "max_kv": max(lengths), "qk_scale": 4.0, "impl": case.impl}
    o = jagged_attention(seed, key.expand(v.shape), v, **options)
    parts = v.double().split(lengths)
    mean = torch.stack([x.mean(0, keepdim=True) for x in parts])
    absolute = torch.stack([x.abs().mean(0, keepdim=True) for x in parts])
    precision = Precision.of(case.dtype)
    # The scores are equal but for the order of their sums.
    products = 4 * (seed.double().abs() * key.double().abs()).sum(-1, keepdim=True)
    score_error = 2 * precision.summed(dim + 4, products)
    # The weights' rounding, their sum, the sum with v.
    relative_error = 2 * precision.summed(max(lengths) + 4, torch.ones_like(mean))
    error = absolute * (torch.expm1(score_error) + relative_error) + precision.rounded(absolute)
    assert_within(o, mean, error + precision.rounded(mean), "o")


@invariant
def test_a_constant_added_to_the_bias_is_added_to_lse_alone(case, data):
    problem = data.draw(JAGGED_ATTENTION.problems(case))
    shape = (data.draw(st.sampled_from((1, problem.batch))), data.draw(st.sampled_from((1, problem.signature.heads))))
    generator = torch.Generator().manual_seed(problem.seed)
    # Integers: the sum has no rounding.
    bias = torch.randint(-8, 8, (*shape, *problem.rows), generator=generator).float().to(case.device)
    bias[bias == -8] = float("-inf")
    shift = data.draw(st.sampled_from((-64.0, -8.0, 3.0, 64.0)))
    before, after = (dataclasses.replace(problem, bias=x) for x in (bias, bias + shift))
    found, shifted = (outputs(p, p.inputs(), case.impl) for p in (before, after))
    bounds = [exact(p, {}).bounds for p in (before, after)]
    assert_within(shifted["o"], found["o"].double(), bounds[0]["o"] + bounds[1]["o"], "o")
    assert_within(shifted["lse"], found["lse"].double() + shift, bounds[0]["lse"] + bounds[1]["lse"], "lse")


@invariant
def test_the_least_number_in_a_bias_hides_a_key_as_minus_infinity_does(case, data):
    problem = dataclasses.replace(data.draw(JAGGED_ATTENTION.problems(case, same_offsets=True)), window=(None, None))
    shape = (problem.batch, data.draw(st.sampled_from((1, problem.signature.heads))), *problem.rows)
    generator = torch.Generator().manual_seed(problem.seed)
    hidden = torch.rand(shape, generator=generator) < 0.7
    last = data.draw(st.booleans())
    for b, n in enumerate(problem.kv_offsets.diff().tolist()):
        if n:
            hidden[b, :, :, n - 1 if last else 0] = False  # each row sees a key
    dtype = data.draw(st.sampled_from((torch.float32, case.dtype)))
    bias = torch.randn(shape, generator=generator).to(dtype)
    least, infinite = (
        dataclasses.replace(problem, bias=bias.masked_fill(hidden, number).to(case.device))
        for number in (torch.finfo(dtype).min, float("-inf"))
    )
    assert_equal(JAGGED_ATTENTION.run(least, case), JAGGED_ATTENTION.run(infinite, case))
