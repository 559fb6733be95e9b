"""What is refused, and how."""

import re

import pytest
import torch

import faceter
from faceter.kernels.gdpa.op import gdpa, gdpa_implementation
from faceter.kernels.implementations import ImplementationError
from faceter.kernels.testing_problems import offsets_of

OFFSETS = offsets_of([3, 0, 5])
LEGAL = {"q_offsets": OFFSETS, "kv_offsets": OFFSETS, "max_q": 5, "max_kv": 5}


def rows(n=8, heads=2, dim=16, **options):
    return torch.randn(n, heads, dim, **options)


def call(q=None, k=None, v=None, **options):
    q, k = rows() if q is None else q, rows() if k is None else k
    return gdpa(q, k, k if v is None else v, **{**LEGAL, **options})


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
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
        ({"activation": "swish"}, ValueError, "no activation 'swish'; there are gelu, gelu_tanh, silu"),
        ({"activation": "gelu,silu,relu"}, ValueError, "3 activations for 2 heads: give one, or one for each head"),
        ({"window": (-2, None)}, ValueError, "window's left bound must be None or at least 0, is -2"),
        ({"window": (2, 3), "causal": True}, ValueError, "causal and a window of 3 keys to the right contradict"),
        ({"impl": "cutlass"}, ImplementationError, "gdpa has no implementation 'cutlass'; there are cpu, triton"),
        (
            {"q": rows().double(), "k": rows().double(), "impl": "triton"},
            ImplementationError,
            "gdpa: 'triton' was asked for and can't run: it has no float64",
        ),
        (
            {"q": rows(dim=300), "k": rows(dim=300), "impl": "triton"},
            ImplementationError,
            "gdpa: 'triton' was asked for and can't run: head dim 300 is above 256",
        ),
    ],
)  # fmt: skip
def test_misfits(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call(**arguments)


@pytest.mark.parametrize(
    "offsets, bound, message",
    [
        ([1, 4, 8], 4, "q_offsets must start at 0, starts at 1"),
        ([0, 5, 3], 5, "q_offsets must not fall: [1] is 5, [2] is 3"),
        ([0, 4, 9], 5, "q_offsets ends at 9, but there are 8 rows"),
        ([0, 2, 8], 5, "example 1 has 6 rows, more than max_q = 5"),
    ],
)
def test_contents_of_offsets_under_debug(offsets, bound, message):
    offsets = torch.tensor(offsets)
    arguments = {"q_offsets": offsets, "max_q": bound, "kv_offsets": None, "k": torch.randn(2, 5, 2, 16)}
    with faceter.debug(), pytest.raises(ValueError, match=re.escape(message)):
        call(**arguments)


def test_the_variable_forces_an_implementation(monkeypatch):
    monkeypatch.setenv("FACETER_IMPL", "reference")
    assert gdpa_implementation(rows()).name == "reference"
    assert gdpa_implementation(rows(), "cpu").name == "cpu"  # the argument comes first
    monkeypatch.setenv("FACETER_IMPL", "nothing")
    with pytest.raises(ImplementationError, match="gdpa has no implementation 'nothing'"):
        call()


def test_a_choice_says_why_a_better_one_was_not_taken():
    assert gdpa_implementation(rows()).name == "cpu"
    choice = gdpa_implementation(rows(device="meta"))
    assert choice.name == "reference"
    assert set(choice.refused) == {"cpu", "triton"}
    assert choice.refused["cpu"] == "the tensors are on meta"
