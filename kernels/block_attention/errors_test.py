"""What block attention refuses, and how."""

import re

import pytest
import torch

import faceter
from faceter.kernels import testing_errors as errors
from faceter.kernels.block_attention.op import block_attention, block_attention_implementation
from faceter.kernels.implementations import ImplementationError
from faceter.kernels.testing_errors import OFFSETS, rows

LEGAL = {"offsets": OFFSETS, "max_len": 5}
DENSE = {"offsets": None, "max_len": None}


def call(q=None, k=None, v=None, **options):
    """Of legal arguments, but for those that are given."""
    q = rows() if q is None else q
    k = q if k is None else k
    return block_attention(q, k, k if v is None else v, **{**LEGAL, **options})


def angles(*shape, **options):
    return {name: torch.zeros(shape, **options) for name in ("cos", "sin")}


MISFITS = [
    ({"q": rows().flatten(1)}, ValueError, "q must be (T, H, D) with offsets, is (8, 32)"),
    ({"q": rows()[None]}, ValueError, "q must be (T, H, D) with offsets, is (1, 8, 2, 16)"),
    ({"k": rows()[None]}, ValueError, "k must be (T, H, D) with offsets, is (1, 8, 2, 16)"),
    (DENSE, ValueError, "q must be (B, N, H, D), or (T, H, D) with offsets, is (8, 2, 16) without"),
    (
        {"q": rows()[None], "k": rows(), **DENSE},
        ValueError,
        "k must be (B, N, H, D), or (T, H, D) with offsets, is (8, 2, 16) without",
    ),
    ({"k": rows(dim=32)}, ValueError, "q has (heads, head dim) (2, 16), k has (2, 32): they must be equal"),
    ({"v": rows(heads=1)}, ValueError, "q has (heads, head dim) (2, 16), v has (1, 16): they must be equal"),
    ({"v": rows(9)}, ValueError, "k and v must have the same shape, are (8, 2, 16) and (9, 2, 16)"),
    ({"k": rows(9)}, ValueError, "q and k must have the same shape, are (8, 2, 16) and (9, 2, 16)"),
    ({"k": rows().half()}, TypeError, "q is torch.float32, k is torch.float16: they must be the same"),
    ({"q": rows().int()}, TypeError, "q must be float64, float32, float16 or bfloat16, is torch.int32"),
    ({"k": rows(device="meta")}, ValueError, "q is on cpu, k is on meta: they must be on the same device"),
    ({"offsets": OFFSETS.to("meta")}, ValueError, "offsets is on meta, q is on cpu: put it there"),
    ({"offsets": OFFSETS.float()}, TypeError, "offsets must be int32 or int64, is torch.float32"),
    ({"offsets": OFFSETS[:, None]}, ValueError, "offsets must be (B + 1,), is (4, 1)"),
    ({"offsets": OFFSETS[:0]}, ValueError, "offsets must be (B + 1,), is (0,)"),
    ({"max_len": None}, ValueError, "offsets needs max_len, a bound of its examples' lengths as a Python int"),
    ({"max_len": -1}, ValueError, "max_len must not be negative, is -1"),
    *(({"block": n}, ValueError, f"block must be one of 16, 32, 64, 128, is {n}") for n in (0, 48, 256, -16)),
    (
        {"q": rows(dim=17), **angles(8, 8)},
        ValueError,
        "cos and sin turn pairs of dims, but the head dim is 17, an odd number",
    ),
    ({"cos": torch.zeros(8, 8)}, ValueError, "cos needs sin: give both or none"),
    ({"sin": torch.zeros(8, 8)}, ValueError, "sin needs cos: give both or none"),
    *(
        (angles(*shape), ValueError, f"cos must be (T, D / 2) = (8, 8), is {shape}")
        for shape in ((8, 16), (1, 8), (7, 8), (8, 1), (8,), (1, 8, 8))
    ),
    *(
        (
            {"q": torch.zeros(3, 8, 2, 16), **DENSE, **angles(*shape)},
            ValueError,
            f"cos must be (B or 1, N, D / 2) = (3, 8, 8), is {shape}",
        )
        for shape in ((8, 8), (2, 8, 8), (3, 1, 8), (3, 8, 16))
    ),
    ({**angles(8, 8), "sin": torch.zeros(8, 7)}, ValueError, "sin must be (T, D / 2) = (8, 8), is (8, 7)"),
    (angles(8, 8, dtype=torch.float64), TypeError, "cos must be float32, is torch.float64"),
    ({**angles(8, 8), "sin": torch.zeros(8, 8).half()}, TypeError, "sin must be float32, is torch.float16"),
    (angles(8, 8, device="meta"), ValueError, "cos is on meta, q is on cpu: put it there"),
    (
        {"impl": "cutlass"},
        ImplementationError,
        "block_attention has no implementation 'cutlass'; there are cpu, triton",
    ),
    (
        {"q": rows().double(), "impl": "triton"},
        ImplementationError,
        "block_attention: 'triton' was asked for and can't run: it has no float64",
    ),
    (
        {"q": rows(dim=300), "impl": "triton"},
        ImplementationError,
        "block_attention: 'triton' was asked for and can't run: head dim 300 is above 256",
    ),
]


@pytest.mark.parametrize("arguments, kind, message", MISFITS)
def test_misfits(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call(**arguments)


def test_what_is_legal_is_not_refused():
    assert call(**angles(8, 8)).shape == (8, 2, 16)
    for examples in (1, 3):
        assert call(torch.zeros(3, 8, 2, 16), **DENSE, **angles(examples, 8, 8)).shape == (3, 8, 2, 16)


@pytest.mark.parametrize(
    "offsets, bound, message",
    [(offsets, bound, message.replace("q_offsets", "offsets").replace("max_q", "max_len"))
     for offsets, bound, message in errors.CONTENTS],
)  # fmt: skip
def test_contents_of_offsets_under_debug(offsets, bound, message):
    with faceter.debug(), pytest.raises(ValueError, match="^" + re.escape(message)):
        call(offsets=torch.tensor(offsets), max_len=bound)


def test_the_variable_forces_an_implementation(monkeypatch):
    errors.the_variable_forces_an_implementation("block_attention", call, block_attention_implementation, monkeypatch)


def test_a_choice_says_why_a_better_one_was_not_taken():
    errors.a_choice_says_why_a_better_one_was_not_taken(block_attention_implementation)
