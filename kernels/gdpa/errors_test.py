"""What GDPA refuses, and how."""

import pytest

from faceter.kernels import testing_errors as errors
from faceter.kernels.gdpa.op import gdpa, gdpa_implementation

OWN_MISFITS = [
    ({"activation": "swish"}, ValueError, "no activation 'swish'; there are gelu, gelu_tanh, silu"),
    ({"activation": "gelu,silu,relu"}, ValueError, "3 activations for 2 heads: give one, or one for each head"),
]


@pytest.mark.parametrize("arguments, kind, message", errors.MISFITS + OWN_MISFITS)
def test_misfits(arguments, kind, message):
    errors.misfits_are_refused(gdpa, arguments, kind, message)


@pytest.mark.parametrize("offsets, bound, message", errors.CONTENTS)
def test_contents_of_offsets_under_debug(offsets, bound, message):
    errors.contents_of_offsets_are_checked_under_debug(gdpa, offsets, bound, message)


def test_the_variable_forces_an_implementation(monkeypatch):
    errors.the_variable_forces_an_implementation("gdpa", lambda: errors.call(gdpa), gdpa_implementation, monkeypatch)


def test_a_choice_says_why_a_better_one_was_not_taken():
    errors.a_choice_says_why_a_better_one_was_not_taken(gdpa_implementation)
