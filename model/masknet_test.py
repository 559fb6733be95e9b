import torch

from faceter.model.masknet import MaskNet
from faceter.model.testing_sequences import check_autocast, check_compiles, check_flops, check_meta


def test_definition():
    torch.manual_seed(0)
    net = MaskNet(6, 4).double()
    s_cat = torch.randn(5, 6, dtype=torch.float64)
    (mask,), (lce,) = net.mask.layers, net.lce.layers
    want = (s_cat * (s_cat @ mask.weight.T + mask.bias)) @ lce.weight.T + lce.bias
    torch.testing.assert_close(net(s_cat), want)


def test_each_event_on_its_own():
    torch.manual_seed(0)
    net = MaskNet(6, 4, hidden=(8,)).double()
    s_cat = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(torch.stack([net(row) for row in s_cat]), net(s_cat))
    assert net(s_cat[:0]).shape == (0, 4)


def test_passes_every_input_at_the_start():
    torch.manual_seed(0)
    mask = MaskNet(32, 4, hidden=(32,)).mask(torch.randn(256, 32))
    assert abs(mask.mean() - 1) < 0.1
    assert mask.std() < 0.5


def test_flops_autocast_compile_meta():
    torch.manual_seed(0)
    net = MaskNet(6, 4, hidden=(8,))

    def call(module, s, *_):
        return module(s)

    check_flops(lambda s, *_: net(s), net.flops, 6, rows=5)
    check_autocast(lambda s, *_: net(s), 6)
    check_compiles(lambda s, *_: net(s), 6)
    check_meta(lambda: MaskNet(6, 4, hidden=(8,)), call, 6)
