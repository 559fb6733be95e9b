"""What jagged attention refuses, and how."""

import pytest
import torch

from faceter.kernels import testing_errors as errors
from faceter.kernels.jagged_attention.op import jagged_attention, jagged_attention_implementation

SHAPE = "bias must be (B or 1, H or 1, max_q, max_kv) = (3, 2, 5, 5), is "
OWN_MISFITS = [
    *(
        ({"bias": torch.zeros(shape)}, ValueError, f"{SHAPE}{shape}")
        for shape in ((5, 5), (2, 2, 5, 5), (3, 3, 5, 5), (3, 2, 4, 5), (3, 2, 5, 1), (0, 2, 5, 5))
    ),
    (
        {"bias": torch.zeros(1, 1, 5, 5, dtype=torch.bfloat16)},
        TypeError,
        "bias must be torch.float32, as q is, or float32, is torch.bfloat16",
    ),
    (
        {"bias": torch.zeros(1, 1, 5, 5, device="meta")},
        ValueError,
        "bias is on meta, q is on cpu: put it there",
    ),
]


@pytest.mark.parametrize("arguments, kind, message", errors.MISFITS + OWN_MISFITS)
def test_misfits(arguments, kind, message):
    errors.misfits_are_refused(jagged_attention, arguments, kind, message)


@pytest.mark.parametrize("offsets, bound, message", errors.CONTENTS)
def test_contents_of_offsets_under_debug(offsets, bound, message):
    errors.contents_of_offsets_are_checked_under_debug(jagged_attention, offsets, bound, message)


def test_the_variable_forces_an_implementation(monkeypatch):
    errors.the_variable_forces_an_implementation(
        "jagged_attention", lambda: errors.call(jagged_attention), jagged_attention_implementation, monkeypatch
    )


def test_a_choice_says_why_a_better_one_was_not_taken():
    errors.a_choice_says_why_a_better_one_was_not_taken(jagged_attention_implementation)
