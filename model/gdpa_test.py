from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.activations import activation
from faceter.model.gdpa import GdpaPffn, gdpa
from faceter.model.testing_sequences import (
    check_autocast,
    check_compiles,
    check_flops,
    check_meta,
    check_padding,
    lengths,
    sequences,
)

NAMES = ("gelu", "gelu_tanh", "silu", "relu", "relu2", "leaky_relu", "hardswish", "identity")


def build(dim=6, heads=2, tokens=3, summary=(2, 5), tau=10.0, dtype=torch.float64, **options):
    torch.manual_seed(0)
    module = GdpaPffn(dim, heads, tokens, *summary, tau, **options).to(dtype)
    # Gains that differ from feature to feature and norms that are not the identity, as after training.
    for p in (module.k_gain, module.v_gain, module.norm.weight, module.summary_norm.weight):
        p.data.mul_(1 + 0.3 * torch.rand_like(p))
    return module


def summaries(batch, shape=(2, 5), dtype=torch.float64):
    return torch.rand(batch, *shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


def layer_norm(x, weight, bias=0.0):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def one_row(module, s_E, x_sum_MC, names):
    """The definition for one row of S: S + sum over heads and keys of Act_h(q . k / tau) v."""
    dim, heads = s_E.shape[0], module.heads
    d = dim // heads
    x = layer_norm(x_sum_MC, module.summary_norm.weight, module.summary_norm.bias).flatten()
    keys = (module.w1.weight @ x + module.w1.bias).view(module.tokens, heads, d)
    values = (module.w2.weight @ x + module.w2.bias).view(module.tokens, heads, d)
    q = layer_norm(s_E, module.norm.weight).view(heads, d)
    out = torch.zeros(heads, d, dtype=s_E.dtype)
    for h in range(heads):
        act = activation(names[h % len(names)])
        for j in range(module.tokens):
            a, b = q[h], keys[j, h]
            if module.qk_norm:
                a, b = (y / (y.square().mean() + torch.finfo(y.dtype).eps).sqrt() for y in (a, b))
            logit = a @ (b * module.k_gain[h])
            weight = act(logit / module.tau) if module.scale_inside else act(logit) / module.tau
            out[h] += weight * values[j, h] * module.v_gain[h]
    return s_E + out.flatten()


@settings(deadline=None, max_examples=30)
@given(
    lengths=lengths,
    heads=st.integers(1, 4),
    head_dim=st.sampled_from([1, 3, 4]),
    tokens=st.integers(1, 4),
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5).map(tuple),
    scale_inside=st.booleans(),
    qk_norm=st.booleans(),
)
def test_against_a_loop(lengths, heads, head_dim, tokens, names, scale_inside, qk_norm):
    dim = heads * head_dim
    module = build(dim, heads, tokens, activations=names, scale_inside=scale_inside, qk_norm=qk_norm)
    s, mask, _ = sequences(lengths, dim)
    x_sum = summaries(len(lengths))
    got = module(s, mask, x_sum)
    for b, n in enumerate(lengths):
        for t in range(n):
            torch.testing.assert_close(got[b, t], one_row(module, s[b, t], x_sum[b], names))
        assert not got[b, n:].any()


@settings(deadline=None, max_examples=10)
@given(lengths=lengths, qk_norm=st.booleans())
def test_padding_changes_nothing(lengths, qk_norm):
    module = build(6, 3, activations=("gelu", "silu"), qk_norm=qk_norm)
    x_sum = summaries(len(lengths))
    check_padding(lambda s, mask, _: module(s, mask, x_sum), module, lengths, 6, by_row=True)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 3, 3))
    assert torch.autograd.gradcheck(partial(gdpa, act=activation(name), qk_scale=0.7, out_scale=0.3), (q, k, v))


def test_gradcheck_of_the_module():
    module = build(4, 2, 2, activations=("gelu", "identity"), qk_norm=True)
    s, mask, _ = sequences([0, 1, 3], 4)
    inputs = (s.requires_grad_(), summaries(3).requires_grad_(), *module.parameters())
    assert torch.autograd.gradcheck(lambda s, x, *_: module(s, mask, x), inputs)


def test_rows_do_not_see_each_other():
    module = build()
    s, mask, _ = sequences([7], 6)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(s[:, order], mask, summaries(1)), module(s, mask, summaries(1))[:, order])


def test_each_example_has_its_own_network():
    module = build()
    s, mask, _ = sequences([4, 4], 6)
    s[1] = s[0]
    x_sum = summaries(2)
    out = module(s, mask, x_sum)
    assert (out[0] - out[1]).abs().max() > 1e-2
    x_sum.requires_grad_()
    module(s, mask, x_sum)[0].sum().backward()
    assert x_sum.grad[0].any()
    assert not x_sum.grad[1].any()


@pytest.mark.parametrize("scale_inside", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tau", [1, 100, 2000])
def test_branch_starts_near_unit_variance_whatever_tau(tau, qk_norm, scale_inside):
    torch.manual_seed(0)
    module = GdpaPffn(64, 4, 16, 4, 32, tau, ("gelu", "silu", "identity"), scale_inside, qk_norm)
    s, x_sum = torch.randn(64, 20, 64), torch.sigmoid(torch.randn(64, 4, 32))
    branch = module(s, torch.ones(64, 20, dtype=torch.bool), x_sum) - s
    assert 0.3 < branch.std() < 1.5


def test_qk_norm_bounds_the_logits():
    module = build(16, 2, qk_norm=True, tau=5.0, scale_inside=True)
    seen = []
    module.activations = [lambda p: seen.append(p) or p]
    s, mask, _ = sequences([9, 4], 16)
    module(s * 1e4, mask, 1e4 * summaries(2))
    module.w1.weight.data.mul_(1e4)
    module(s, mask, summaries(2))
    bound = 8 * module.k_gain.abs().max() / 5.0
    assert len(seen) == 2
    assert all(p.abs().max() <= bound for p in seen)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_flops_are_what_torch_counts(heads):
    module = build(6, heads, dtype=torch.float32, activations=("gelu", "silu"))
    x_sum = summaries(3, dtype=torch.float32)
    check_flops(lambda s, mask, _: module(s, mask, x_sum), module.flops, 6, rows=5)


def test_autocast_compile_meta():
    names = ("gelu", "relu2", "identity")
    module = build(8, 4, dtype=torch.float32, activations=names)

    def call(module, s, mask, delta):
        return module(s, mask, summaries(s.shape[0], dtype=torch.float32).to(s.device))

    check_autocast(partial(call, module), 8)
    check_meta(lambda: GdpaPffn(8, 4, 3, 2, 5, 10.0, names), call, 8)
    x_sum = summaries(8, dtype=torch.float32)
    check_compiles(lambda s, mask, _: module(s, mask, x_sum[: s.shape[0]]), 8)
