import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.kron import SumKronLinear
from faceter.model.testing_sequences import check_flops, check_meta

sizes = st.integers(1, 5)


@settings(deadline=None, max_examples=30)
@given(in_tokens=sizes, out_tokens=sizes, in_dim=sizes, out_dim=sizes, terms=sizes)
def test_is_a_sum_of_kronecker_products(in_tokens, out_tokens, in_dim, out_dim, terms):
    torch.manual_seed(0)
    layer = SumKronLinear(in_tokens, out_tokens, in_dim, out_dim, terms).double()
    h = torch.randn(2, in_tokens, in_dim, dtype=torch.float64)
    # The Kronecker product of Z^T and W^T, and the sum of these over the terms.
    matrix = torch.einsum("inm,ide->mend", layer.z, layer.w).reshape(out_tokens * out_dim, in_tokens * in_dim)
    want = (h.flatten(1) @ matrix.T).view(2, out_tokens, out_dim)
    torch.testing.assert_close(layer(h), want)


def test_gradcheck():
    torch.manual_seed(0)
    layer = SumKronLinear(3, 2, 4, 3, 2).double()
    h = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h, *_: layer(h), (h, *layer.parameters()))


def test_keeps_the_variance_at_the_start():
    torch.manual_seed(0)
    y = SumKronLinear(64, 16, 96, 48, 8)(torch.randn(32, 64, 96))
    assert y.shape == (32, 16, 48)
    assert 0.8 < y.std() < 1.2


def test_flops_and_meta():
    layer = SumKronLinear(7, 3, 4, 5, 2)
    flops = layer.flops(torch.tensor([0, 9]))["kron"]
    assert flops.tolist() == [2 * 2 * (3 * 7 * 4 + 3 * 4 * 5)] * 2

    def constant_but_for_length(lengths_B):  # what check_flops asks of blocks whose cost grows with the length
        return {**layer.flops(lengths_B), "rows": lengths_B.double() - 7}

    check_flops(lambda s, *_: layer(s), constant_but_for_length, 4, rows=7)
    check_meta(lambda: SumKronLinear(7, 3, 4, 5, 2), lambda m, s, *_: m(s), 4)
