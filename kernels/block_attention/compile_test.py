"""Block attention under torch's machinery: what all operators share, opcheck, angles."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from faceter.kernels.block_attention.op import block_attention
from faceter.kernels.testing_compile import CHECKS, DIM, HEADS, LENGTHS, Attend, inputs
from faceter.kernels.testing_devices import DEVICES

BLOCK = 16
each_device = pytest.mark.parametrize("device", DEVICES)


def attend(q, k, v, offsets, most=64, **options):
    return block_attention(q, k, v, offsets=offsets, max_len=most, block=BLOCK, **options)


def pairs(n):
    return n // BLOCK * BLOCK**2 + (n % BLOCK) ** 2


def angles(*rows, device="cpu"):
    """cos and sin."""
    x = torch.randn(*rows, DIM // 2, device=device)
    return x.cos(), x.sin()


@each_device
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_all_that_operators_share(check, device):
    check(Attend("block_attention", attend, pairs), device)


@each_device
@pytest.mark.parametrize("angle_rows", [None, (3, 17), (1, 17)], ids=str)
def test_opcheck_of_dense_rows(angle_rows, device):
    leaves = [torch.randn(3, 17, HEADS, DIM, requires_grad=True, device=device) for _ in range(3)]
    check_operators(leaves, None, angle_rows)


@each_device
@pytest.mark.parametrize("angle_rows", [None, (sum(LENGTHS),)], ids=str)
def test_opcheck_of_jagged_rows(angle_rows, device):
    offsets, leaves = inputs(LENGTHS, device)
    check_operators(leaves, offsets, angle_rows)


def check_operators(leaves, offsets, angle_rows):
    cos, sin = (None, None) if angle_rows is None else angles(*angle_rows, device=leaves[0].device)
    options = (offsets, cos, sin, None, 17, BLOCK, 0.25, 0.5, "")
    torch.library.opcheck(torch.ops.faceter.block_attention_forward.default, (*leaves, *options))
    detached = [x.detach() for x in leaves]
    args = (torch.randn_like(detached[0]), *detached, *options)
    torch.library.opcheck(torch.ops.faceter.block_attention_backward.default, args)


@each_device
def test_angles_in_one_graph_without_recompilation(device):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def total(q, k, v, offsets, cos, sin):
        return attend(q, k, v, offsets, cos=cos, sin=sin).square().sum()

    compiled = torch.compile(total, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for batch in range(3, 13):
        offsets, leaves = inputs([2 + batch % 3, *range(1, batch)], device)
        turn = angles(len(leaves[0]), device=device)
        found = torch.autograd.grad(compiled(*leaves, offsets, *turn), leaves)
        expected = torch.autograd.grad(total(*leaves, offsets, *turn), leaves)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 10


@each_device
def test_autocast_leaves_angles_in_float32(device):
    offsets, (q, k, v) = inputs(LENGTHS, device)
    cos, sin = angles(len(q), device=device)
    with torch.autocast(device, torch.bfloat16):
        o = attend(q, k, v, offsets, cos=cos, sin=sin)
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, attend(*(x.detach().bfloat16() for x in (q, k, v)), offsets, cos=cos, sin=sin))
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


@each_device
def test_flops_of_dense_rows(device):
    q = torch.randn(3, 37, HEADS, DIM, device=device, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        o = block_attention(q, q, q, block=BLOCK)
    assert counter.get_total_flops() == 3 * 4 * HEADS * DIM * pairs(37)
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 3 * 10 * HEADS * DIM * pairs(37)


def test_meta_tensors_have_shapes_with_angles():
    q = torch.empty(3, 20, HEADS, DIM, device="meta", dtype=torch.bfloat16, requires_grad=True)
    o = block_attention(q, q, q, **dict(zip(("cos", "sin"), angles(1, 20, device="meta"), strict=True)))
    assert (o.shape, o.dtype) == (q.shape, torch.bfloat16)
    (dq,) = torch.autograd.grad(o, q, o)
    assert (dq.shape, dq.dtype) == (q.shape, torch.bfloat16)


def test_angles_are_checked_for_derivatives_that_there_are_not():
    offsets, (q, k, v) = inputs(LENGTHS, requires_grad=False)
    cos, sin = angles(len(q))
    with pytest.raises(NotImplementedError, match=r"block_attention has no torch\.func"):
        torch.func.grad(lambda x: attend(q, k, v, offsets, cos=x, sin=sin).sum())(cos)
