import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from faceter.model.config import ConfigError, WukongConfig
from faceter.model.experts import WukongExperts, partition


@settings(deadline=None)
@given(total=st.integers(0, 50), parts=st.integers(1, 9))
def test_partition(total, parts):
    sizes = partition(total, parts)
    assert sum(sizes) == total
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1


def test_one_expert_is_a_plain_stack():
    experts = WukongExperts(7, 5, 4, WukongConfig(fmb_tokens=2, fm_rank=3, hidden=(6,)))
    x_BNE = torch.randn(3, 7, 4)
    assert len(experts.stacks) == 1
    torch.testing.assert_close(experts(x_BNE), experts.stacks[0](x_BNE))


@settings(deadline=None, max_examples=20)
@given(n=st.integers(1, 12), out=st.integers(2, 9), experts=st.integers(1, 4), layers=st.integers(1, 2))
def test_each_expert_reads_its_part_only(n, out, experts, layers):
    assume(n >= experts and out >= 2 * experts)
    config = WukongConfig(layers=layers, fmb_tokens=experts, fm_rank=2, hidden=(6,), experts=experts)
    block = WukongExperts(n, out, 4, config)
    x_BNE = torch.randn(3, n, 4, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y_BNE = block(x_BNE)
    assert y_BNE.shape == (3, out, 4)
    assert block.flops(torch.ones(3))["wukong"].sum() == counter.get_total_flops()
    if experts > 1:
        torch.nn.init.zeros_(block.mix.w_MN)  # without the mix, an expert's outputs depend on its own tokens only
        (grad,) = torch.autograd.grad(block(x_BNE)[:, : partition(out, experts)[0]].square().sum(), x_BNE)
        assert not grad[:, block.in_parts[0] :].any()


def test_experts_exchange_through_the_mix():
    block = WukongExperts(6, 6, 4, WukongConfig(fmb_tokens=2, fm_rank=2, hidden=(6,), experts=2))
    x_BNE = torch.randn(3, 6, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(block(x_BNE)[:, 0, 0].sum(), x_BNE)
    assert grad.abs().sum((0, 2)).all()


@pytest.mark.parametrize(
    "n, out, fmb, experts, message",
    [
        (2, 9, 3, 3, "3 can't share 2 tokens"),
        (9, 4, 3, 3, "3 can't share 4 output"),
        (9, 9, 2, 3, "2 of them of the FMB"),
    ],
)
def test_too_many_experts(n, out, fmb, experts, message):
    with pytest.raises(ConfigError, match=message):
        WukongExperts(n, out, 4, WukongConfig(fmb_tokens=fmb, experts=experts))
