import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.pooling import PMA
from faceter.model.testing_sequences import (
    check_autocast,
    check_compiles,
    check_flops,
    check_meta,
    check_padding,
    lengths,
    sequences,
)


def build(dim=6, heads=2, queries=3, dtype=torch.float64):
    torch.manual_seed(0)
    return PMA(dim, heads, queries).to(dtype)


def one_example(attention, q_ME, s_NE):
    """MHA(Q, S, S) of one example without padding, weight by weight."""
    (queries, dim), n, heads = q_ME.shape, s_NE.shape[0], attention.heads
    d = dim // heads
    k, v = ((s_NE @ w.T).view(n, heads, d) for w in attention.kv.weight.split(dim))
    out = torch.zeros(queries, heads, d, dtype=s_NE.dtype)
    for i in range(queries):
        for h in range(heads if n else 0):
            q = q_ME[i].view(heads, d)[h]
            weights = torch.stack([(q @ k[j, h]) / math.sqrt(d) for j in range(n)]).exp()
            out[i, h] = (weights / weights.sum()) @ v[:, h]
    return out.flatten(1) @ attention.out.weight.T


@settings(deadline=None, max_examples=30)
@given(lengths=lengths, heads=st.integers(1, 3), head_dim=st.integers(1, 4), queries=st.integers(1, 4))
def test_against_a_loop(lengths, heads, head_dim, queries):
    pma = build(heads * head_dim, heads, queries)
    s, mask, _ = sequences(lengths, heads * head_dim)
    got = pma(s, mask)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(got[b], one_example(pma.attention, pma.queries, s[b, :n]))


@settings(deadline=None, max_examples=10)
@given(lengths=lengths)
def test_padding_changes_nothing(lengths):
    pma = build()
    check_padding(lambda s, mask, _: pma(s, mask), pma, lengths, 6, by_row=False)


def test_invariant_under_permutation_and_blind_to_other_examples():
    pma = build()
    s, mask, _ = sequences([9, 9], 6)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pma(s[:, order], mask), pma(s, mask))
    torch.testing.assert_close(pma(s[:1], mask[:1]), pma(s, mask)[:1])


def test_empty_sequence_gives_zeros_and_no_nan():
    pma = build()
    s, mask, _ = sequences([0, 2], 6)
    s.requires_grad_()
    out = pma(s, mask)
    out.sum().backward()
    assert not out[0].any()
    assert out[1].all()
    assert all(x.grad.isfinite().all() for x in (s, *pma.parameters()))


def test_gradcheck():
    pma = build(4, 2, 2)
    s, mask, _ = sequences([0, 1, 3], 4)
    assert torch.autograd.gradcheck(lambda s, *_: pma(s, mask), (s.requires_grad_(), *pma.parameters()))


def test_flops_autocast_compile_meta():
    pma = build(dtype=torch.float32)

    def call(module, s, mask, _):
        return module(s, mask)

    check_flops(lambda s, mask, _: pma(s, mask), pma.flops, 6, rows=5)
    check_autocast(lambda s, mask, _: pma(s, mask), 6)
    check_compiles(lambda s, mask, _: pma(s, mask), 6)
    check_meta(lambda: PMA(6, 2, 3), call, 6)
