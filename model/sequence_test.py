from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from faceter.model.config import EventConfig
from faceter.model.sequence import SequenceLayer, SequenceSummary
from faceter.model.testing_sequences import (
    check_autocast,
    check_compiles,
    check_flops,
    check_meta,
    check_padding,
    sequences,
)

CLS, WIDTH, OUT = 2, 5, 7
EVENT = EventConfig(dim=8, heads=2, tokens=3, seeds=4, kron_terms=2, window=2, pffn_tokens=3)
FULL = replace(EVENT, comp_skip=False)

# Valid rows: the CLS rows are always there.
rows = st.lists(st.integers(CLS, CLS + 7), min_size=1, max_size=4)


class Tower(nn.Module):
    """Some layers and the summary, X_sum in the place of a model's."""

    def __init__(self, event: EventConfig, layers: int = 2, pma: int = 2, recent: int = 2):
        super().__init__()
        self.layers = nn.ModuleList(
            SequenceLayer(event, i, WIDTH, max_length=50, dropout=0.0, summary_tokens=CLS) for i in range(layers)
        )
        self.summary = SequenceSummary(event, CLS, pma, recent, OUT)

    def forward(self, s, mask, delta):
        generator = torch.Generator().manual_seed(4)
        x_sum = torch.rand(s.shape[0], CLS, WIDTH, generator=generator, dtype=s.dtype).to(s.device)
        return self.run(s, mask, delta, x_sum)

    def run(self, s, mask, delta, x_sum):
        summary = None
        for layer in self.layers:
            s, summary = layer(s, mask, x_sum, delta, summary)
        return self.summary(s, mask, summary)

    def flops(self, lengths_B):
        total: dict[str, torch.Tensor] = {}
        for block in (*self.layers, self.summary):
            for part, flops_B in block.flops(lengths_B).items():
                total[part] = total.get(part, 0) + flops_B
        return total


def build(event=EVENT, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return Tower(event, **options).to(dtype)


def layer_norm(x, norm):
    return F.layer_norm(x, x.shape[-1:], norm.weight)


def test_even_layer_pools_and_odd_layer_attends():
    layers = build().layers
    assert [(layer.pffn is None, layer.pooling is None, layer.attention is None) for layer in layers] == [
        (False, False, True),
        (True, True, False),
    ]
    assert all(None not in (x.pffn, x.pooling, x.attention) for x in build(FULL).layers)


def test_even_layer():
    layer = build().layers[0]
    s, mask, delta = sequences([5, 2], 8)
    x_sum = torch.rand(2, CLS, WIDTH, dtype=s.dtype)
    out, summary = layer(s, mask, x_sum, delta, None)
    want = layer.pffn(s, mask, x_sum)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(summary, layer.pooling(layer_norm(want, layer.pooling_norm), mask))
    again = layer(s, mask, x_sum, delta, torch.full_like(summary, float("nan")))[1]
    assert torch.equal(again, summary), "the summary is fresh"


def test_odd_layer():
    layer = build().layers[1]
    s, mask, delta = sequences([5, 2], 8)
    given_summary = torch.randn(2, 3, 8, dtype=s.dtype)
    out, summary = layer(s, mask, torch.full((2, CLS, WIDTH), float("nan")), delta, given_summary)
    assert summary is given_summary
    torch.testing.assert_close(out, s + layer.attention(layer_norm(s, layer.attention_norm), mask, delta))
    with pytest.raises(ValueError, match="needs the summary of the layer before it"):
        layer(s, mask, None, delta, None)


def test_layer_without_comp_skip_attends_to_what_the_pffn_made():
    layer = build(FULL).layers[1]
    s, mask, delta = sequences([5, 2], 8)
    x_sum = torch.rand(2, CLS, WIDTH, dtype=s.dtype)
    out, summary = layer(s, mask, x_sum, delta, None)
    want = layer.pffn(s, mask, x_sum)
    want = want + layer.attention(layer_norm(want, layer.attention_norm), mask, delta)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(summary, layer.pooling(layer_norm(want, layer.pooling_norm), mask))


@pytest.mark.parametrize("pma", [0, 2])
@pytest.mark.parametrize("recent", [0, 1, 3])
def test_summary_is_cls_pma_recent_seeds(pma, recent):
    summary = build(pma=pma, recent=recent).summary
    lengths = [CLS, CLS + 1, CLS + 2, CLS + 6]
    s, mask, _ = sequences(lengths, 8)
    seeds = torch.randn(4, 3, 8, dtype=s.dtype)
    got = summary(s, mask, seeds)
    assert got.shape == (4, summary.num_tokens, OUT) == (4, CLS + pma + recent + 3, OUT)
    for b, n in enumerate(lengths):
        tokens = list(s[b, :CLS])
        if pma:
            tokens += list(summary.pma(layer_norm(s[b : b + 1, :n], summary.pma_norm), mask[b : b + 1, :n])[0])
        newest_first = list(s[b, CLS:n].flip(0))[:recent]
        tokens += newest_first + [torch.zeros(8, dtype=s.dtype)] * (recent - len(newest_first))
        x = layer_norm(torch.stack([*tokens, *seeds[b]]), summary.token_norm)
        x = x @ summary.project.weight.T + summary.project.bias
        torch.testing.assert_close(got[b], torch.sigmoid(x * summary.gating.mlp(x)))


@settings(deadline=None, max_examples=12)
@given(lengths=rows, attention=st.sampled_from(["full", "window", "block"]), comp_skip=st.booleans())
def test_padding_changes_nothing(lengths, attention, comp_skip):
    tower = build(replace(EVENT, attention=attention, comp_skip=comp_skip))
    x_sum = torch.rand(len(lengths), CLS, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    check_padding(partial(tower.run, x_sum=x_sum), tower, lengths, 8, by_row=False)


@settings(deadline=None, max_examples=8)
@given(lengths=rows, comp_skip=st.booleans())
def test_zeros_stay_zeros_and_examples_do_not_mix(lengths, comp_skip):
    tower = build(replace(EVENT, comp_skip=comp_skip))
    s, mask, delta = sequences(lengths, 8)
    x_sum = torch.rand(len(lengths), CLS, WIDTH, dtype=s.dtype)
    alone = [
        tower.run(s[b : b + 1, :n], mask[b : b + 1, :n], delta[b : b + 1, :n], x_sum[b : b + 1])
        for b, n in enumerate(lengths)
    ]
    torch.testing.assert_close(tower.run(s, mask, delta, x_sum), torch.cat(alone))
    summary = None
    for layer in tower.layers:
        s, summary = layer(s, mask, x_sum, delta, summary)
        assert not s[~mask].any()


def test_dropout_is_on_the_branches_and_off_in_evaluation():
    torch.manual_seed(0)
    layer = SequenceLayer(FULL, 0, WIDTH, 50, dropout=0.5, summary_tokens=CLS)
    s, mask, delta = sequences([5, 2], 8, dtype=torch.float32)
    x_sum = torch.rand(2, CLS, WIDTH)
    first, second = (layer(s, mask, x_sum, delta, None)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert not first[~mask].any()
    assert torch.equal(*(layer.eval()(s, mask, x_sum, delta, None)[0] for _ in range(2)))


def test_every_parameter_gets_a_gradient():
    tower = build(EVENT, dtype=torch.float32)
    tower(*sequences([9, 5, CLS], 8, dtype=torch.float32)).sum().backward()
    assert [n for n, p in tower.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_deep_stack_starts_sane_and_learns():
    """Which of the events comes last decides the label; 8 layers learn it in 60 steps."""
    torch.manual_seed(0)
    tower = Tower(replace(EVENT, dim=16, heads=4, attention="full"), layers=8, recent=0)
    head = nn.Linear(tower.summary.num_tokens * OUT, 1)
    optimizer = torch.optim.AdamW([*tower.parameters(), *head.parameters()], lr=3e-3)
    embedding = torch.randn(6, 16)

    def loss():
        lengths = torch.randint(CLS + 1, CLS + 9, (64, 1))
        ids = torch.randint(6, (64, CLS + 8))
        mask = torch.arange(CLS + 8) < lengths
        s = embedding[ids] * mask[..., None]
        label = ids.gather(1, lengths - 1) % 2
        delta = (lengths - 1 - torch.arange(CLS + 8)).clamp(min=0) * 3600.0
        out = tower(s, mask, delta)
        assert 0.02 < out.std() < 0.5
        return F.binary_cross_entropy_with_logits(head(out.flatten(1)), label.float())

    first = None
    for _ in range(60):
        value = loss()
        first = value.item() if first is None else first
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert 0.5 < first < 1.0
    assert value.item() < 0.45


@pytest.mark.parametrize("attention", ["full", "window", "block"])
@pytest.mark.parametrize("comp_skip", [False, True])
def test_flops_are_what_torch_counts(attention, comp_skip):
    event = replace(EVENT, attention=attention, window=200, comp_skip=comp_skip)
    tower = build(event, dtype=torch.float32)
    check_flops(tower, tower.flops, 8, rows=64)


def test_flops_by_part():
    layers = build().layers
    assert set(layers[0].flops(torch.tensor([4]))) == {
        "gdpa",
        "gdpa_weights",
        "pooling",
        "pooling_projection",
        "kron",
    }
    assert set(layers[1].flops(torch.tensor([4]))) == {"attention", "attention_projection"}
    assert set(build().summary.flops(torch.tensor([4]))) == {"pooling", "pooling_projection", "summary"}
    assert set(build(pma=0).summary.flops(torch.tensor([4]))) == {"summary"}


def test_autocast_compile_meta():
    tower = build(FULL, dtype=torch.float32)
    check_autocast(tower, 8)
    check_meta(lambda: Tower(FULL), lambda m, *case: m(*case), 8)
    x_sum = torch.rand(8, CLS, WIDTH)
    check_compiles(lambda s, mask, delta: tower.run(s, mask, delta, x_sum[: s.shape[0]]), 8)
