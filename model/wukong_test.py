import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from faceter.model.wukong import (
    FactorizationMachineBlock,
    LinearCompressionBlock,
    WukongLayer,
    WukongStack,
    fm,
    fm_low_rank,
)

sizes = st.integers(1, 9)


@settings(deadline=None)
@given(batch=st.integers(0, 4), n=sizes, dim=sizes, rank=sizes)
def test_low_rank_fm_is_fm_times_y(batch, n, dim, rank):
    x_BNE, y_NK = torch.randn(batch, n, dim, dtype=torch.float64), torch.randn(n, rank, dtype=torch.float64)
    torch.testing.assert_close(fm_low_rank(x_BNE, y_NK), fm(x_BNE) @ y_NK)


def test_fm_is_all_dot_products():
    x_BNE = torch.randn(2, 3, 5)
    for i in range(3):
        for j in range(3):
            torch.testing.assert_close(fm(x_BNE)[:, i, j], (x_BNE[:, i] * x_BNE[:, j]).sum(-1))


def test_fmb_by_hand():
    block = FactorizationMachineBlock(in_tokens=4, out_tokens=2, dim=3, rank=0, hidden=()).double()
    x_BNE = torch.randn(5, 4, 3, dtype=torch.float64)
    linear = block.mlp.layers[0]
    for b in range(5):
        flat = (x_BNE[b] @ x_BNE[b].T).flatten()
        flat = (flat - flat.mean()) / (flat.var(correction=0) + block.norm.eps).sqrt()
        want = (linear.weight @ flat + linear.bias).view(2, 3)
        torch.testing.assert_close(block(x_BNE)[b], want)


def test_lcb_mixes_tokens_only():
    block = LinearCompressionBlock(4, 2)
    x_BNE = torch.randn(3, 4, 5)
    torch.testing.assert_close(block(x_BNE), torch.einsum("mn,bne->bme", block.w_MN, x_BNE))


@pytest.mark.parametrize("in_tokens", [6, 9])
def test_layer_is_its_equation(in_tokens):
    layer = WukongLayer(in_tokens, 6, dim=4, fmb_tokens=2, rank=3, hidden=(8,))
    assert (layer.residual is None) == (in_tokens == 6)
    x_BNE = torch.randn(5, in_tokens, 4)
    kept = x_BNE if in_tokens == 6 else layer.residual(x_BNE)
    fmb, lcb = layer.fmb(x_BNE), layer.lcb(x_BNE)
    assert fmb.shape == (5, 2, 4)
    assert lcb.shape == (5, 4, 4)
    torch.testing.assert_close(layer(x_BNE), layer.norm(torch.cat([fmb, lcb], 1) + kept))


def test_residual_carries_the_input():
    """With FMB and LCB at zero a layer is the norm of its input."""
    layer = WukongLayer(6, 6, dim=4, fmb_tokens=2, rank=3, hidden=(8,))
    for parameter in [*layer.fmb.parameters(), *layer.lcb.parameters()]:
        torch.nn.init.zeros_(parameter)
    x_BNE = torch.randn(5, 6, 4)
    torch.testing.assert_close(layer(x_BNE), layer.norm(x_BNE))


@settings(deadline=None, max_examples=20)
@given(
    batch=st.integers(1, 3), n=sizes, out=st.integers(2, 6), dim=sizes, rank=st.integers(0, 4), layers=st.integers(1, 3)
)
def test_stack_shape_and_flops(batch, n, out, dim, rank, layers):
    stack = WukongStack(n, out, dim, layers, fmb_tokens=1, rank=rank, hidden=(5,))
    with FlopCounterMode(display=False) as counter:
        assert stack(torch.randn(batch, n, dim)).shape == (batch, out, dim)
    assert stack.flops(torch.ones(batch))["wukong"].sum() == counter.get_total_flops()


def test_deep_stack_trains():
    """Gradients at the first of 12 layers are of the size of those at the last."""
    torch.manual_seed(0)
    stack = WukongStack(12, 8, 16, layers=12, fmb_tokens=4, rank=4, hidden=(32,))
    stack(torch.randn(64, 12, 16)).square().mean().mul(0.5).add(stack(torch.randn(64, 12, 16)).mean()).backward()
    first, last = (stack.layers[i].fmb.mlp.layers[0].weight.grad.norm() for i in (1, -1))
    assert 0.05 < first / last < 20
