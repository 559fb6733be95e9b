import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.rotary import position_angles, rotate, time_angles

F64 = torch.float64


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=F64)


@settings(deadline=None, max_examples=20)
@given(pairs=st.integers(1, 5), heads=st.integers(1, 3), rows=st.integers(1, 6))
def test_turns_complex_numbers(pairs, heads, rows):
    x = randn(2, rows, heads, 2 * pairs)
    got = rotate(x, position_angles(rows, pairs, x.device, F64))
    for t in range(rows):
        for i in range(pairs):
            angle = torch.tensor(t * 10000.0 ** (-i / pairs), dtype=F64)
            want = torch.complex(x[:, t, :, i], x[:, t, :, i + pairs]) * torch.polar(torch.ones_like(angle), angle)
            torch.testing.assert_close(got[:, t, :, i], want.real)
            torch.testing.assert_close(got[:, t, :, i + pairs], want.imag)


def test_product_depends_on_the_difference_of_positions_only():
    q, k = randn(1, 1, 2, 6).expand(1, 9, 2, 6), randn(1, 1, 2, 6).flip(-1).expand(1, 9, 2, 6)
    angles = position_angles(9, 3, q.device, F64)
    product_HMN = torch.einsum("bmhd,bnhd->hmn", rotate(q, angles), rotate(k, angles))
    for shift in range(-8, 9):
        diagonal_HX = product_HMN.diagonal(shift, 1, 2)
        torch.testing.assert_close(diagonal_HX, diagonal_HX[:, :1].expand_as(diagonal_HX))
    assert len({round(v, 6) for v in product_HMN[0, 0].tolist()}) == 9


def test_product_depends_on_the_difference_of_log_times_only():
    # tau = log(1 + dt / 60): both pairs of times are a factor of e apart in 1 + dt / 60.
    one_plus = torch.tensor([[2.0, 2.0 * torch.e, 50.0, 50.0 * torch.e]], dtype=F64)
    angles = time_angles((one_plus - 1) * 60, 3, time_scale=60.0)
    q, k = randn(1, 1, 1, 6).expand(1, 4, 1, 6), randn(1, 1, 1, 6).flip(-1).expand(1, 4, 1, 6)
    product_MN = torch.einsum("bmhd,bnhd->mn", rotate(q, angles), rotate(k, angles))
    torch.testing.assert_close(product_MN[0, 1], product_MN[2, 3])
    torch.testing.assert_close(product_MN[1, 0], product_MN[3, 2])
    assert (product_MN[0, 1] - product_MN[0, 2]).abs() > 1e-3
    assert angles[0, 0, 0].item() == pytest.approx(0.6931471805599453)


def test_request_time_and_position_0_do_not_turn():
    x = randn(1, 1, 2, 4)
    assert torch.equal(rotate(x, position_angles(1, 2, x.device, F64)), x)
    assert torch.equal(rotate(x, time_angles(torch.zeros(1, 1, dtype=F64), 2, 3600.0)), x)


def test_dtype_and_precision():
    # A year in seconds is beyond bf16: the angles are float32 whatever comes in, the product is x's.
    assert time_angles(torch.full((1, 1), 3.2e7, dtype=torch.bfloat16), 2, 3600.0).dtype == torch.float32
    x = randn(1, 3, 2, 4).bfloat16()
    assert rotate(x, position_angles(3, 2, x.device)).dtype == torch.bfloat16
