"""GDPA under torch's machinery: what all operators share, opcheck, FLOPs of a window."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.testing_compile import CHECKS, DIM, HEADS, LENGTHS, Attend, inputs
from faceter.kernels.testing_devices import DEVICES

each_device = pytest.mark.parametrize("device", DEVICES)


def attend(q, k, v, offsets, most=64, **options):
    sides = {"q_offsets": offsets, "kv_offsets": offsets, "max_q": most, "max_kv": most}
    return gdpa(q, k, v, **sides, qk_scale=0.25, **options)


@each_device
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_all_that_operators_share(check, device):
    check(Attend("gdpa", attend, pairs=lambda n: n * n), device)


@each_device
@pytest.mark.parametrize("form", ["jagged", "dense", "shared"])
def test_opcheck(form, device):
    offsets, (q, k, v) = inputs(LENGTHS, device)
    kv_offsets = offsets
    if form != "jagged":
        shape = (len(LENGTHS), 5, HEADS, DIM) if form == "dense" else (5, HEADS, DIM)
        k, v = (torch.randn(shape, requires_grad=True, device=device) for _ in range(2))
        kv_offsets = None
    options = (None, None, 17, 17 if form == "jagged" else 5, "gelu,silu", 0.25, 0.5, -1, -1, "")
    torch.library.opcheck(torch.ops.faceter.gdpa_forward.default, (q, k, v, offsets, kv_offsets, *options))
    grad = torch.randn_like(q)
    detached = [x.detach() for x in (grad, q, k, v)]
    torch.library.opcheck(torch.ops.faceter.gdpa_backward.default, (*detached, offsets, kv_offsets, *options))


@each_device
def test_flops_of_a_window(device):
    offsets, leaves = inputs(LENGTHS, device)
    with FlopCounterMode(display=False) as counter:
        attend(*leaves, offsets, window=(2, 1))
    pairs = sum(max(0, min(n, i + 2) - max(0, i - 2)) for n in LENGTHS for i in range(n))
    assert counter.get_total_flops() == 4 * HEADS * DIM * pairs
