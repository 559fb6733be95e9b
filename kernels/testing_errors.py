"""What every operator of two sides (queries; keys and values) refuses, and how; and how implementations are chosen."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import faceter
from faceter.kernels.implementations import Choice, ImplementationError
from faceter.kernels.testing_problems import offsets_of

OFFSETS = offsets_of([3, 0, 5])
LEGAL = {"q_offsets": OFFSETS, "kv_offsets": OFFSETS, "max_q": 5, "max_kv": 5}


def rows(n: int = 8, heads: int = 2, dim: int = 16, **options) -> Tensor:
    return torch.randn(n, heads, dim, **options)


def call(op: Callable, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None, **options) -> None:
    """Of legal arguments, but for those that are given."""
    q, k = rows() if q is None else q, rows() if k is None else k
    op(q, k, k if v is None else v, **{**LEGAL, **options})


# (arguments, error, what its message says; {op} is the operator's name)
MISFITS = [
    ({"q": rows().flatten(1)}, ValueError, "q must be (T, H, D) with offsets, is (8, 32)"),
    ({"q": rows()[None]}, ValueError, "q must be (T, H, D) with offsets, is (1, 8, 2, 16)"),
    (
        {"k": rows().flatten(1), "kv_offsets": None},
        ValueError,
        "k must be (B, N, H, D), or (N, H, D) without offsets, is (8, 32)",
    ),
    ({"k": rows(dim=32)}, ValueError, "q has (heads, head dim) (2, 16), k has (2, 32): they must be equal"),
    ({"k": rows(heads=1)}, ValueError, "q has (heads, head dim) (2, 16), k has (1, 16): they must be equal"),
    ({"v": rows(9)}, ValueError, "k and v must have the same shape, are (8, 2, 16) and (9, 2, 16)"),
    ({"k": rows().half()}, TypeError, "q is torch.float32, k is torch.float16: they must be the same"),
    ({"q": rows().int()}, TypeError, "q must be float64, float32, float16 or bfloat16, is torch.int32"),
    ({"k": rows(device="meta")}, ValueError, "q is on cpu, k is on meta: they must be on the same device"),
    ({"q_offsets": OFFSETS.to("meta")}, ValueError, "q_offsets is on meta, q is on cpu: put it there"),
    ({"q_offsets": OFFSETS.float()}, TypeError, "q_offsets must be int32 or int64, is torch.float32"),
    ({"q_offsets": OFFSETS[:, None]}, ValueError, "q_offsets must be (B + 1,), is (4, 1)"),
    ({"q_offsets": OFFSETS[:0]}, ValueError, "q_offsets must be (B + 1,), is (0,)"),
    ({"max_q": None}, ValueError, "q_offsets needs max_q, a bound of its examples' lengths as a Python int"),
    ({"max_kv": -1}, ValueError, "max_kv must not be negative, is -1"),
    ({"q_offsets": offsets_of([8])}, ValueError, "the batch is 1 in q_offsets but 3 in kv_offsets"),
    ({"q_offsets": None, "kv_offsets": None}, ValueError, "q and k are both shared by the batch"),
    ({"window": (-2, None)}, ValueError, "window's left bound must be None or at least 0, is -2"),
    ({"window": (2, 3), "causal": True}, ValueError, "causal and a window of 3 keys to the right contradict"),
    ({"impl": "cutlass"}, ImplementationError, "{op} has no implementation 'cutlass'; there are cpu, triton"),
    (
        {"q": rows().double(), "k": rows().double(), "impl": "triton"},
        ImplementationError,
        "{op}: 'triton' was asked for and can't run: it has no float64",
    ),
    (
        {"q": rows(dim=300), "k": rows(dim=300), "impl": "triton"},
        ImplementationError,
        "{op}: 'triton' was asked for and can't run: head dim 300 is above 256",
    ),
]

# (offsets, bound, message) of queries of 8 rows, under faceter.debug().
CONTENTS = [
    ([1, 4, 8], 4, "q_offsets must start at 0, starts at 1"),
    ([0, 5, 3], 5, "q_offsets must not fall: [1] is 5, [2] is 3"),
    ([0, 4, 9], 5, "q_offsets ends at 9, but there are 8 rows"),
    ([0, 2, 8], 5, "example 1 has 6 rows, more than max_q = 5"),
]


def misfits_are_refused(op: Callable, arguments: dict, kind: type, message: str) -> None:
    """Of one row of MISFITS, or of an operator's own."""
    with pytest.raises(kind, match=re.escape(message.replace("{op}", op.__name__))):
        call(op, **arguments)


def contents_of_offsets_are_checked_under_debug(op: Callable, offsets: list[int], bound: int, message: str) -> None:
    """Of one row of CONTENTS."""
    arguments = {"q_offsets": torch.tensor(offsets), "max_q": bound, "kv_offsets": None, "k": torch.randn(2, 5, 2, 16)}
    with faceter.debug(), pytest.raises(ValueError, match=re.escape(message)):
        call(op, **arguments)


def the_variable_forces_an_implementation(
    name: str, run: Callable[[], None], choose: Callable[..., Choice], monkeypatch
) -> None:
    """Of the operator with this name; run: calls it; choose: (q, impl) -> what would run."""
    monkeypatch.setenv("FACETER_IMPL", "reference")
    assert choose(rows()).name == "reference"
    assert choose(rows(), "cpu").name == "cpu"  # the argument comes first
    monkeypatch.setenv("FACETER_IMPL", "nothing")
    with pytest.raises(ImplementationError, match=f"{name} has no implementation 'nothing'"):
        run()


def a_choice_says_why_a_better_one_was_not_taken(choose: Callable[..., Choice]) -> None:
    assert choose(rows()).name == "cpu"
    choice = choose(rows(device="meta"))
    assert choice.name == "reference"
    assert {"cpu", "triton"} <= set(choice.refused)
    assert choice.refused["cpu"] == "the tensors are on meta"
