"""What must hold of every attention operator whatever its numbers are. Each function is a test of one operator.

Bit for bit where a row's sums depend on nothing else; on the CPU they do, on the examples that are padded together and
on strides: there, within the bounds of rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from faceter.kernels.testing_bounds import Exact
from faceter.kernels.testing_devices import CASES, FEW_EXAMPLES, SOME_EXAMPLES, Case, with_room
from faceter.kernels.testing_problems import SIGNATURES, Problem, problems, rows_of_examples

# On a GPU.
_FEW_SIGNATURES = (SIGNATURES[0], SIGNATURES[6], SIGNATURES[8])


@dataclass(frozen=True)
class Operator:
    """An operator under test.

    Attributes:
        outputs: (problem, its inputs by name, implementation) -> outputs by name, "o" first, each with as many leading
            dims as q has before its heads.
        exact: (problem, gradients of the outputs by name) -> exact results and bounds.
        normalised: as `problems` takes it.
        complete: problem -> strategy of problems with what else the operator takes: of each example, or of no one.
    """

    outputs: Callable[[Problem, dict[str, Tensor], str], dict[str, Tensor]]
    exact: Callable[[Problem, dict[str, Tensor]], Exact]
    normalised: bool = False
    complete: Callable[[Problem], st.SearchStrategy[Problem]] = st.just

    def run(self, problem: Problem, case: Case, grads: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Outputs and gradients by name ("o", "dq", ..). grads: of the outputs; None = ones."""
        inputs = problem.inputs()
        outputs = self.outputs(problem, inputs, case.impl)
        grads = grads or {name: torch.ones_like(x) for name, x in outputs.items()}
        found = torch.autograd.grad([outputs[name] for name in grads], list(inputs.values()), list(grads.values()))
        named = {f"d{name}": gradient for name, gradient in zip(inputs, found, strict=True)}
        return {name: x.detach() for name, x in outputs.items()} | named

    def problems(self, case: Case, same_offsets: bool = False) -> st.SearchStrategy[Problem]:
        """Few and small ones: each runs several times."""
        # More than one tile of any kernel, but the interpreter is slow.
        most = 70 if (case.impl, case.device) == ("triton", "cpu") else case.most
        return problems(
            (case.dtype,), case.device, most, case.dims, same_offsets, self.normalised, _FEW_SIGNATURES
        ).flatmap(self.complete)

    def assert_same(self, case: Case, problem: Problem, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        """Two results of a problem with gradients of ones are the same, as far as the module's text says."""
        if case.impl == "triton":
            assert_equal(actual, expected)
            return
        ones = {name: torch.ones_like(x) for name, x in actual.items() if not name.startswith("d")}
        self.exact(problem, ones).check(actual)


def invariant(test):
    """A test of (case, data) for every case."""
    cases = [case for case in CASES if case.impl != "reference"]
    # Which the interpreter computes in float32.
    cases = [c for c in cases if (c.impl, c.device, c.dtype) != ("triton", "cpu", torch.bfloat16)]
    drawn = {
        count: settings(max_examples=count)(given(data=st.data())(with_room(test)))
        for count in (SOME_EXAMPLES, FEW_EXAMPLES)
    }

    @pytest.mark.parametrize("case", cases, ids=str)
    def run(case):
        drawn[FEW_EXAMPLES if (case.impl, case.device) == ("triton", "cpu") else SOME_EXAMPLES](case=case)

    run.__name__ = test.__name__
    return run


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit; NaN is equal to nothing."""
    for name, x in expected.items():
        assert torch.equal(actual[name], x), name


def of_rows(results: dict[str, Tensor], rows, examples) -> dict[str, Tensor]:
    """What belongs to these rows; of a bias' gradient, to these examples."""
    return {name: x[examples if name == "dbias" else rows] for name, x in results.items()}


def examples_never_see_each_other_even_if_one_is_nan(operator: Operator, case: Case, data) -> None:
    problem = data.draw(operator.problems(case, same_offsets=True))
    if problem.batch == 0:
        return
    b = data.draw(st.integers(0, problem.batch - 1))
    offsets = problem.q_offsets.tolist()
    mine = slice(offsets[b], offsets[b + 1])
    spoilt = dataclasses.replace(problem, q=problem.q.clone(), k=problem.k.clone(), v=problem.v.clone())
    for x in spoilt.tensors:
        x[mine] = float("nan")
    if problem.bias is not None:
        spoilt.bias = problem.bias.clone()
        spoilt.bias[b] = float("nan")
    rows = torch.ones(len(problem.q), dtype=torch.bool, device=case.device)
    rows[mine] = False
    examples = [other for other in range(problem.batch) if other != b]
    before, after = (of_rows(operator.run(p, case), rows, examples) for p in (problem, spoilt))
    assert_equal(after, before)


def rows_past_the_last_example_never_matter_and_come_out_empty(operator: Operator, case: Case, data) -> None:
    problem = data.draw(operator.problems(case, same_offsets=True))
    end = int(problem.q_offsets[-1])
    padded, bare = (
        problem.with_tensors(*tensors)
        for tensors in (
            [torch.cat([x[:end], x.new_full((40, *x.shape[1:]), float("nan"))]) for x in problem.tensors],
            [x[:end].contiguous() for x in problem.tensors],
        )
    )
    expected = operator.run(bare, case)
    grads = {}
    for name, x in expected.items():
        if not name.startswith("d"):
            grads[name] = torch.cat([torch.ones_like(x), x.new_full((40, *x.shape[1:]), float("nan"))])
    found = operator.run(padded, case, grads)
    everything = slice(None)
    assert_equal(of_rows(found, slice(0, end), everything), expected)
    for name, x in found.items():
        if name != "dbias":
            assert (x[end:] == (float("-inf") if name == "lse" else 0)).all(), name


def permuting_examples_permutes_the_results(operator: Operator, case: Case, data) -> None:
    problem = data.draw(operator.problems(case, same_offsets=True))
    order = data.draw(st.permutations(range(problem.batch)))
    permuted = problem.of_examples(order)
    rows = rows_of_examples(problem.q_offsets, order)
    operator.assert_same(
        case, permuted, operator.run(permuted, case), of_rows(operator.run(problem, case), rows, order)
    )


def splitting_a_batch_in_two_changes_nothing(operator: Operator, case: Case, data) -> None:
    problem = data.draw(operator.problems(case, same_offsets=True))
    cut = data.draw(st.integers(0, problem.batch))
    whole = operator.run(problem, case)
    for part in (list(range(cut)), list(range(cut, problem.batch))):
        half = problem.of_examples(part)
        rows = rows_of_examples(problem.q_offsets, part)
        operator.assert_same(case, half, operator.run(half, case), of_rows(whole, rows, part))


def every_run_gives_the_same_bits(operator: Operator, case: Case, data) -> None:
    problem = data.draw(operator.problems(case))
    first = operator.run(problem, case)
    for _ in range(9 if case.device == "cuda" else 2):
        assert_equal(operator.run(problem, case), first)


def a_shared_side_is_the_same_rows_for_every_example(operator: Operator, case: Case, data) -> None:
    problem = data.draw(operator.problems(case))

    def spread(x, offsets):
        return x if offsets is not None or x.dim() == 4 else x.expand(problem.batch, *x.shape).contiguous()

    k, v = (spread(x, problem.kv_offsets) for x in (problem.k, problem.v))
    dense = dataclasses.replace(problem, q=spread(problem.q, problem.q_offsets), k=k, v=v)
    found, expected = (operator.outputs(p, p.inputs(), case.impl) for p in (dense, problem))
    operator.assert_same(case, dense, found, expected)
