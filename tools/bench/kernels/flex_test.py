"""FlexAttention's log-score GDPA is exact: with its gradients, in float64."""

import math
from types import SimpleNamespace

import torch

from faceter.kernels.gdpa.reference import gdpa_reference
from faceter.tools.bench.kernels.peers import flex


def plain_flex_attention(q, k, v, score_mod, block_mask, scale, return_aux):
    """What FlexAttention computes, on a CPU, in float64 and with a backward pass."""
    scores = score_mod(scale * q @ k.mT, None, None, None, None).masked_fill(~block_mask, -math.inf)
    return torch.softmax(scores, -1) @ v, SimpleNamespace(lse=torch.logsumexp(scores, -1))


def test_log_score_gdpa(monkeypatch):
    monkeypatch.setattr(flex.flex_module, "flex_attention", plain_flex_attention)
    generator = torch.Generator().manual_seed(0)
    lengths, keys, heads, dim = [3, 0, 7], 5, 2, 4

    def tensor(*shape):
        return (2 * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_()

    q, k, v = tensor(10, heads, dim), tensor(3, keys, heads, dim), tensor(3, keys, heads, dim)
    document = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    mask = document[:, None] == torch.arange(3).repeat_interleave(keys)
    o = flex.log_score_gdpa(q, k.flatten(0, 1), v, mask, 0.5, document, 0.1)
    offsets = torch.tensor([0, 3, 3, 10])
    expected = gdpa_reference(q, k, v, offsets, None, "gelu", 0.5, 0.1, -1, -1)
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(o.shape, generator=generator, dtype=torch.float64)
    for found, wanted in zip(*(torch.autograd.grad(x, (q, k, v), grad) for x in (o, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
