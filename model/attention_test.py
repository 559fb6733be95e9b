import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from faceter.model.attention import SelfAttention, masked_attention
from faceter.model.rotary import position_angles, rotate, time_angles
from faceter.model.testing_sequences import (
    check_autocast,
    check_compiles,
    check_flops,
    check_meta,
    check_padding,
    lengths,
    sequences,
)

KINDS = ["full", "window", "block"]


def build(dim=6, heads=2, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return SelfAttention(dim, heads, **options).to(dtype)


def sees(module, query, key):
    """Whether a query's row attends to a key's row, both valid."""
    near = {
        "full": True,
        "window": abs(query - key) <= module.window,
        "block": query // 64 == key // 64,
    }[module.kind]
    return near and (key <= query or not module.causal)


def one_example(module, s_NE, delta_N):
    """The definition, row by row, without padding or batch."""
    n, dim = s_NE.shape
    heads, d = module.heads, dim // module.heads
    q, k, v = ((s_NE @ w.T).view(1, n, heads, d) for w in module.qkv.weight.split(dim))
    pairs = d // 2
    angles = {
        "none": lambda: None,
        "rope": lambda: position_angles(n, pairs, s_NE.device, s_NE.dtype),
        "rote": lambda: time_angles(delta_N[None], pairs, module.time_scale),
        "both": lambda: torch.cat(
            [
                position_angles(n, pairs // 2, s_NE.device, s_NE.dtype),
                time_angles(delta_N[None], pairs // 2, module.time_scale),
            ],
            -1,
        ),
    }[module.position]()
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    out = torch.zeros(n, heads, d, dtype=s_NE.dtype)
    for h in range(heads):
        for i in range(n):
            keys = [j for j in range(n) if sees(module, i, j)]
            weights = torch.stack([(q[0, i, h] @ k[0, j, h]) / math.sqrt(d) for j in keys]).exp()
            out[i, h] = (weights / weights.sum()) @ v[0, keys, h]
    return out.flatten(1) @ module.out.weight.T


@settings(deadline=None, max_examples=40)
@given(
    lengths=lengths,
    heads=st.integers(1, 3),
    shape=st.sampled_from([(1, "none"), (3, "none"), (6, "rope"), (2, "rote"), (4, "both"), (8, "both")]),
    kind=st.sampled_from(KINDS),
    window=st.integers(1, 4),
    causal=st.booleans(),
)
@example(lengths=[64, 70, 0, 1], heads=2, shape=(4, "both"), kind="block", window=1, causal=True)
@example(lengths=[63, 128], heads=1, shape=(1, "none"), kind="block", window=1, causal=False)
def test_against_a_loop(lengths, heads, shape, kind, window, causal):
    head_dim, position = shape
    module = build(heads * head_dim, heads, kind=kind, window=window, causal=causal, position=position)
    s, mask, delta = sequences(lengths, heads * head_dim)
    got = module(s, mask, delta)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(got[b, :n], one_example(module, s[b, :n], delta[b, :n]))
        assert not got[b, n:].any()


@settings(deadline=None, max_examples=10)
@given(lengths=lengths, kind=st.sampled_from(KINDS), causal=st.booleans())
def test_padding_changes_nothing(lengths, kind, causal):
    module = build(8, 2, kind=kind, window=2, causal=causal, position="both")
    check_padding(module, module, lengths, 8, by_row=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_reaches_the_keys_in_reach_and_no_other(kind, causal):
    module = build(4, 1, kind=kind, window=2, causal=causal, position="rope")
    s, mask, _ = sequences([70], 4)
    s.requires_grad_()
    out = module(s, mask)
    for t in (0, 3, 62, 63, 64, 69):
        (grad,) = torch.autograd.grad(out[0, t].sum(), s, retain_graph=True)
        reached = grad[0].abs().amax(-1) > 0
        assert reached.tolist() == [sees(module, t, j) for j in range(70)]


def test_permutation_equivariant_without_position():
    module = build(6, 2, kind="full")
    s, mask, _ = sequences([9, 9], 6)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(s[:, order], mask), module(s, mask)[:, order])
    turning = build(4, 1, kind="full", position="rope")
    assert not torch.allclose(turning(s[:, order, :4], mask), turning(s[..., :4], mask)[:, order])


def test_shift_in_position_and_scale_in_time_change_nothing():
    module = build(4, 1, kind="window", window=3, position="both", time_scale=1.0)
    s, mask, _ = sequences([6], 4)
    one_plus = torch.linspace(9, 1, 6, dtype=torch.float64)[None]
    want = module(s, mask, one_plus - 1)
    # Rows in front that nobody may attend to shift all positions; the same factor on 1 + dt / t_scale shifts all taus.
    shifted = torch.cat([torch.zeros(1, 5, 4, dtype=s.dtype), s], 1)
    mask = torch.arange(11)[None] >= 5
    times = torch.cat([torch.zeros(1, 5, dtype=s.dtype), 7 * one_plus - 1], 1)
    torch.testing.assert_close(module(shifted, mask, times)[:, 5:], want)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    module = build(4, 2, kind=kind, window=1, position="rope")
    s, mask, delta = sequences([0, 1, 4], 4)
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda s, *_: module(s, mask, delta), (s, *module.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_query_without_a_key_gives_zeros_and_no_nan(backend, dtype):
    q, k, v = (torch.randn(2, 3, 2, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    allowed = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    allowed[0, 0, 1] = False
    allowed[1] = False
    with sdpa_kernel(backend):
        out = masked_attention(q, k, v, allowed)
        out.sum().backward()
    assert not out[0, 1].any()
    assert not out[1].any()
    assert out[0, 0].all()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert not x.grad[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_no_kernel_is_asked_for_a_query_without_a_key(kind, monkeypatch):
    # cuDNN's kernel answers it with garbage, which no CPU shows.
    asked = []
    original = F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask):
        asked.append(attn_mask)
        return original(q, k, v, attn_mask=attn_mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    module = build(4, 1, kind=kind, window=1)
    s, mask, _ = sequences([0, 1, 70, 130], 4)
    module(s, mask)
    assert asked[0].any(-1).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_flops_count_the_pairs_that_see_each_other(kind, causal):
    module = build(6, 2, kind=kind, window=5, causal=causal)
    for n in (0, 1, 2, 5, 6, 7, 63, 64, 65, 130):
        pairs = sum(sees(module, i, j) for i in range(n) for j in range(n))
        flops = module.flops(torch.tensor([n]))
        assert flops["attention"].item() == 2 * 2 * pairs * 6
        assert flops["attention_projection"].item() == 2 * n * 6 * 4 * 6


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_what_torch_counts(kind):
    module = build(6, 2, torch.float32, kind=kind, window=200)
    # A block's batch holds all blocks: torch's count is ours for one block per example, and for any number.
    check_flops(module, module.flops, 6, rows=64)


def test_blocks_cost_what_blocks_cost():
    module = build(6, 2, torch.float32, kind="block")
    check_flops(module, module.flops, 6, rows=192)


def test_time_is_needed_where_it_is_used():
    s, mask, _ = sequences([3], 4)
    for position in ("rote", "both"):
        with pytest.raises(ValueError, match=f"position '{position}' needs delta_BN"):
            build(4, 1, position=position)(s, mask)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_compile_meta(kind):
    options = {"kind": kind, "window": 2, "position": "both"}
    module = build(8, 2, torch.float32, **options)
    check_autocast(module, 8)
    check_compiles(module, 8)
    check_meta(lambda: SelfAttention(8, 2, **options), lambda m, *case: m(*case), 8)
