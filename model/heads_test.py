import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from faceter.model.heads import MultiTaskHeads


def build(tasks=2, domains=3, hidden=(6, 5)):
    heads = MultiTaskHeads(4, hidden, tasks, domains)
    for parameter in heads.parameters():
        parameter.data = torch.randn_like(parameter)
    return heads


@settings(deadline=None, max_examples=30)
@given(
    batch=st.integers(0, 5),
    tasks=st.integers(1, 3),
    domains=st.integers(1, 4),
    hidden=st.sampled_from([(), (5,), (6, 5)]),
)
def test_is_its_equation(batch, tasks, domains, hidden):
    heads = build(tasks, domains, hidden)
    r_BR, domains_B = torch.randn(batch, 4), torch.randint(domains, (batch,))
    with FlopCounterMode(display=False) as counter:
        got = heads(r_BR, domains_B)
    assert got.shape == (batch, tasks)
    for b, d in enumerate(domains_B.tolist()):
        for t in range(tasks):
            h = torch.nn.functional.gelu(heads.mlps[t](r_BR[b])) if hidden else r_BR[b]
            own = 0
            if domains > 1:
                h = (1 + heads.gamma_DTE[d, t]) * h + heads.beta_DTE[d, t]
                own = heads.bias_DT[d, t]
            torch.testing.assert_close(got[b, t], heads.weight_TE[t] @ h + heads.bias_T[t] + own)
    assert sum(f.sum() for f in heads.flops(torch.ones(batch)).values()) == counter.get_total_flops()


def test_domains_start_equal_and_learn_apart():
    heads = MultiTaskHeads(4, (5,), tasks=1, domains=3)
    r_BR = torch.randn(1, 4).expand(3, -1)
    logits = heads(r_BR, torch.arange(3))
    torch.testing.assert_close(logits, logits[:1].expand(3, 1))
    heads(r_BR, torch.ones(3, dtype=torch.int64)).sum().backward()
    for parameter in (heads.gamma_DTE, heads.beta_DTE, heads.bias_DT):
        assert parameter.grad[1].any()
        assert not parameter.grad[[0, 2]].any()


def test_logits_are_fp32():
    heads = build().bfloat16()
    assert heads(torch.randn(3, 4, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64)).dtype == torch.float32
