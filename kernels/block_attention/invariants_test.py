"""What must hold of block attention whatever its numbers are."""

import dataclasses

import torch
from hypothesis import strategies as st

from faceter.kernels import testing_invariants as invariants
from faceter.kernels.block_attention.reference import blocks_of
from faceter.kernels.block_attention.testing_block_attention import KINDS, drawn, exact, outputs
from faceter.kernels.jagged_attention import testing_jagged_attention as jagged
from faceter.kernels.testing_bounds import assert_within
from faceter.kernels.testing_invariants import Operator, assert_equal, invariant
from faceter.kernels.testing_problems import Problem, offsets_of

# On a GPU.
_FEW_KINDS = (KINDS[0], KINDS[2], KINDS[6])


class _BlockAttention(Operator):
    def problems(self, case, same_offsets=False):
        return drawn(case, same_offsets, _FEW_KINDS)


BLOCK_ATTENTION = _BlockAttention(outputs=outputs, exact=exact, normalised=True)
JAGGED_ATTENTION = Operator(outputs=jagged.outputs, exact=jagged.exact, normalised=True)


@invariant
def test_examples_never_see_each_other_even_if_one_is_nan(case, data):
    invariants.examples_never_see_each_other_even_if_one_is_nan(BLOCK_ATTENTION, case, data)


@invariant
def test_rows_past_the_last_example_never_matter_and_come_out_empty(case, data):
    invariants.rows_past_the_last_example_never_matter_and_come_out_empty(BLOCK_ATTENTION, case, data)


@invariant
def test_permuting_examples_permutes_the_results(case, data):
    invariants.permuting_examples_permutes_the_results(BLOCK_ATTENTION, case, data)


@invariant
def test_splitting_a_batch_in_two_changes_nothing(case, data):
    invariants.splitting_a_batch_in_two_changes_nothing(BLOCK_ATTENTION, case, data)


@invariant
def test_every_run_gives_the_same_bits(case, data):
    invariants.every_run_gives_the_same_bits(BLOCK_ATTENTION, case, data)


@invariant
def test_blocks_never_see_each_other_even_if_one_is_nan(case, data):
    problem = data.draw(BLOCK_ATTENTION.problems(case))
    found = list(blocks_of(problem.q, problem.q_offsets, problem.block))
    if not found:
        return
    mine = data.draw(st.sampled_from(found))
    spoilt = dataclasses.replace(problem, **{name: getattr(problem, name).clone() for name in "qkv"})
    everything = list(spoilt.tensors)
    if problem.cos is not None and problem.cos.shape[:-1] == problem.q.shape[:-2]:
        spoilt.cos, spoilt.sin = problem.cos.clone(), problem.sin.clone()
        everything += [spoilt.cos, spoilt.sin]
    for x in everything:
        x[mine] = float("nan")
    others = torch.ones(problem.q.shape[:-2], dtype=torch.bool, device=case.device)
    others[mine] = False
    before, after = ({name: x[others] for name, x in BLOCK_ATTENTION.run(p, case).items()} for p in (problem, spoilt))
    assert_equal(after, before)


@invariant
def test_it_is_jagged_attention_with_each_block_as_an_example(case, data):
    problem = dataclasses.replace(data.draw(BLOCK_ATTENTION.problems(case, same_offsets=True)), cos=None, sin=None)
    lengths = [rows.stop - rows.start for rows in blocks_of(problem.q, problem.q_offsets, problem.block)]
    fields = {f.name: getattr(problem, f.name) for f in dataclasses.fields(Problem)}
    offsets = offsets_of(lengths, device=case.device)
    sides = {"q_offsets": offsets, "kv_offsets": offsets, "max_q": problem.block, "max_kv": problem.block}
    assert_alike(case, (BLOCK_ATTENTION, problem), (JAGGED_ATTENTION, Problem(**{**fields, **sides})))


@invariant
def test_one_turn_of_all_rows_of_a_block_changes_nothing(case, data):
    problem = data.draw(BLOCK_ATTENTION.problems(case))
    generator = torch.Generator().manual_seed(problem.seed)
    shape = (*problem.q.shape[:-2], problem.q.shape[-1] // 2)
    cos, sin = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
    # Quarters of a turn: other cos and sin, as rounded to float32, would also scale, by 1 + 2^-24 or so.
    turns = torch.tensor([(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)])
    for rows in blocks_of(problem.q, problem.q_offsets, problem.block):
        cos[rows], sin[rows] = turns[torch.randint(4, shape[-1:], generator=generator)].T
    plain = dataclasses.replace(problem, cos=None, sin=None)
    same = dataclasses.replace(problem, cos=cos.to(case.device), sin=sin.to(case.device))
    assert_alike(case, (BLOCK_ATTENTION, same), (BLOCK_ATTENTION, plain))


@invariant
def test_a_row_that_is_a_block_is_its_value(case, data):
    problem = data.draw(BLOCK_ATTENTION.problems(case, same_offsets=True))
    block = problem.block
    # The last block of each example.
    lengths = [block * n + 1 for n in data.draw(st.lists(st.integers(0, case.most // block), min_size=1, max_size=3))]
    total, (heads, dim) = sum(lengths), problem.q.shape[-2:]
    generator = torch.Generator().manual_seed(problem.seed)
    q, k, v = (torch.randn(total, heads, dim, generator=generator).to(case.device, case.dtype) for _ in range(3))
    offsets = offsets_of(lengths, device=case.device)
    angles = {"cos": None, "sin": None}
    if problem.cos is not None:
        angle = torch.randn(total, dim // 2, generator=generator).to(case.device)
        angles = {"cos": angle.cos(), "sin": angle.sin()}
    sides = {"q_offsets": offsets, "kv_offsets": offsets, "max_q": max(lengths), "max_kv": max(lengths)}
    single = dataclasses.replace(problem, q=q, k=k, v=v, **sides, **angles)
    last = offsets[1:].long() - 1
    found = {name: x[last] for name, x in BLOCK_ATTENTION.run(single, case).items()}
    # Its weight is 1 whatever its score; out_scale is a power of two.
    zero = torch.zeros_like(found["dq"])
    expected = {"o": problem.out_scale * v[last], "dq": zero, "dk": zero, "dv": zero + problem.out_scale}
    assert_equal(found, expected)


def assert_alike(case, *runs):
    """Two operators' results of a problem each, with a gradient of ones, are within what rounding explains of both."""
    results, bounds = [], []
    for operator, problem in runs:
        grads = {"o": torch.ones_like(problem.q)}
        results.append(operator.run(problem, case, grads))
        bounds.append(operator.exact(problem, grads).bounds)
    for name in ("o", "dq", "dk", "dv"):
        assert_within(results[0][name], results[1][name].double(), bounds[0][name] + bounds[1][name], name)
