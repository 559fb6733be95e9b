import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.seed_pooling import SeedPooling
from faceter.model.testing_sequences import (
    check_autocast,
    check_compiles,
    check_flops,
    check_meta,
    check_padding,
    lengths,
    sequences,
)


def build(dim=6, heads=2, seeds=5, tokens=3, terms=2, dtype=torch.float64):
    torch.manual_seed(0)
    pooling = SeedPooling(dim, heads, seeds, tokens, terms).to(dtype)
    pooling.norm.weight.data.mul_(1 + 0.3 * torch.rand(dim, dtype=dtype))
    return pooling


@settings(deadline=None, max_examples=20)
@given(lengths=lengths, heads=st.integers(1, 3), seeds=st.integers(1, 5), tokens=st.integers(1, 4))
def test_definition(lengths, heads, seeds, tokens):
    dim = 3 * heads
    pooling = build(dim, heads, seeds, tokens)
    s, mask, _ = sequences(lengths, dim)
    got = pooling(s, mask)

    seed = pooling.seeds
    centred = seed - seed.mean(1, keepdim=True)
    q = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * pooling.norm.weight
    w_k, w_v = pooling.attention.kv.weight.split(dim)
    for b, n in enumerate(lengths):
        h = torch.zeros(seeds, dim, dtype=s.dtype)
        if n:
            q_HMD, k_HND, v_HND = (
                (x).view(-1, heads, 3).movedim(1, 0) for x in (q, s[b, :n] @ w_k.T, s[b, :n] @ w_v.T)
            )
            h = torch.softmax(q_HMD @ k_HND.mT / 3**0.5, -1) @ v_HND
            h = h.movedim(0, 1).flatten(1) @ pooling.attention.out.weight.T
        want = sum(z.T @ h @ w for z, w in zip(pooling.kron.z, pooling.kron.w, strict=True))
        torch.testing.assert_close(got[b], want)


@settings(deadline=None, max_examples=10)
@given(lengths=lengths)
def test_padding_changes_nothing(lengths):
    pooling = build()
    check_padding(lambda s, mask, _: pooling(s, mask), pooling, lengths, 6, by_row=False)


def test_flops_autocast_compile_meta():
    pooling = build(dtype=torch.float32)

    def call(module, s, mask, _):
        return module(s, mask)

    check_flops(lambda s, mask, _: pooling(s, mask), pooling.flops, 6, rows=5)
    check_autocast(lambda s, mask, _: pooling(s, mask), 6)
    check_compiles(lambda s, mask, _: pooling(s, mask), 6)
    check_meta(lambda: SeedPooling(6, 2, 5, 3, 2), call, 6)
