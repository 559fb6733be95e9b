from dataclasses import replace

import pytest
import torch

from faceter.model.config import GemConfig
from faceter.model.interformer import InterFormer, SummaryTokens
from faceter.model.random_batch import random_embedded

TINY = GemConfig.from_name("tiny")
N = 5


def run(config, batch=3, length=6):
    torch.manual_seed(0)
    model = InterFormer(config, N)
    x_BNC = torch.randn(batch, N, config.dim, requires_grad=True)
    events = random_embedded(config, batch, length).events
    return model, x_BNC, events


def depends(output, inputs):
    (grad,) = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True, retain_graph=True)
    return grad is not None and bool(grad.any())


def test_shapes():
    model, x_BNC, events = run(TINY)
    x, s_sum = model(x_BNC, events)
    assert x.shape == (3, TINY.x_tokens, TINY.dim)
    shared = TINY.summary_tokens + TINY.pma_tokens + TINY.recent_tokens
    assert s_sum.shape == (3, 2 * shared + 4 + 2, TINY.dim)
    assert model.summary_tokens == s_sum.shape[1]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_who_sees_whom(bidirectional):
    model, x_BNC, events = run(replace(TINY, bidirectional=bidirectional))
    x, s_sum = model(x_BNC, events)
    for e in events.values():
        assert depends(x, e.values) == bidirectional
        assert depends(s_sum, e.values)
    assert depends(s_sum, x_BNC) == bidirectional
    assert depends(x, x_BNC)


def test_bidirectional_events_inform_each_other():
    """Through X, from the second layer on."""
    model, x_BNC, events = run(TINY)
    _, s_sum = model(x_BNC, events)
    clicked = s_sum[:, : model.towers[0].summary_tokens]
    seen = s_sum[:, model.towers[0].summary_tokens :]
    assert not depends(seen, events["clicked"].values)  # frozen after its one layer
    assert depends(clicked, events["clicked"].values)
    assert not depends(clicked, events["seen"].values)  # its layer 1 is of odd index: self-attention alone reads no X
    deeper = replace(TINY, events=tuple(replace(e, comp_skip=False) for e in TINY.events))
    model, x_BNC, events = run(deeper)
    _, s_sum = model(x_BNC, events)
    assert depends(s_sum[:, : model.towers[0].summary_tokens], events["seen"].values)


def test_frozen_event_keeps_its_summary():
    """`seen` has one layer of two: its S_sum is that of a model with one layer of the same weights."""
    model, x_BNC, events = run(TINY)
    _, s_sum = model(x_BNC, events)
    state = model.towers[1].start(events["seen"], x_sum := model.x_summaries["0"](x_BNC))
    _, first = model.towers[1].step(0, state, x_sum)
    torch.testing.assert_close(s_sum[:, model.towers[0].summary_tokens :], first)


def test_cls_rows_lead_the_sequence():
    model, x_BNC, events = run(TINY)
    x_sum_BMC = model.x_summaries["0"](x_BNC)
    state = model.towers[0].start(events["clicked"], x_sum_BMC)
    assert state.s_BNE.shape == (3, TINY.summary_tokens + 6, 16)
    torch.testing.assert_close(state.s_BNE[:, : TINY.summary_tokens], model.towers[0].cls(x_sum_BMC))
    assert state.mask_BN.all()
    assert not state.delta_BN[:, : TINY.summary_tokens].any()
    torch.testing.assert_close(state.delta_BN[:, TINY.summary_tokens :].flatten(), events["clicked"].delta)


def test_only_layers_that_read_x_sum_make_one():
    assert set(run(TINY)[0].x_summaries) == {"0"}
    every = replace(TINY, events=tuple(replace(e, comp_skip=False) for e in TINY.events))
    assert set(run(every)[0].x_summaries) == {"0", "1"}
    assert not run(replace(TINY, bidirectional=False))[0].x_summaries


def test_summary_tokens():
    block = SummaryTokens(N, 2, 4)
    x_BNE = torch.randn(3, N, 4)
    want = block.gating(block.mlp(x_BNE.flatten(1)).view(3, 2, 4))
    torch.testing.assert_close(block(x_BNE), want)
