import torch

from faceter.model.gating import Gating


def test_definition():
    torch.manual_seed(0)
    gating = Gating(3, hidden=(5,)).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(gating(x), 1 / (1 + torch.exp(-x * gating.mlp(x))))
    assert 0 < gating(x).min() < gating(x).max() < 1


def test_starts_near_the_sigmoid():
    torch.manual_seed(0)
    x = torch.randn(256, 64)
    y = Gating(64)(x).logit()
    assert torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1] > 0.8


def test_flops():
    assert Gating(3, hidden=(5,)).flops(torch.tensor([0, 4]))["gating"].tolist() == [0, 4 * 2 * (15 + 15)]
