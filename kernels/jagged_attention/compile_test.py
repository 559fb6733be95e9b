"""Jagged attention under torch's machinery: what all operators share, opcheck, a bias."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from faceter.kernels.jagged_attention.op import jagged_attention
from faceter.kernels.testing_compile import CHECKS, DIM, HEADS, LENGTHS, Attend, inputs
from faceter.kernels.testing_devices import DEVICES

MOST = 17
each_device = pytest.mark.parametrize("device", DEVICES)


def attend(q, k, v, offsets, most=64, **options):
    sides = {"q_offsets": offsets, "kv_offsets": offsets, "max_q": most, "max_kv": most}
    return jagged_attention(q, k, v, **sides, **options)


@each_device
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_all_that_operators_share(check, device):
    check(Attend("jagged_attention", attend, pairs=lambda n: n * n), device)


@each_device
@pytest.mark.parametrize("bias_shape", [None, (len(LENGTHS), HEADS), (1, 1)], ids=str)
@pytest.mark.parametrize("form", ["jagged", "dense", "shared"])
def test_opcheck(form, bias_shape, device):
    offsets, (q, k, v) = inputs(LENGTHS, device)
    kv_offsets, keys = offsets, MOST
    if form != "jagged":
        kv_offsets, keys = None, 5
        shape = (len(LENGTHS), keys, HEADS, DIM) if form == "dense" else (keys, HEADS, DIM)
        k, v = (torch.randn(shape, requires_grad=True, device=device) for _ in range(2))
    bias = None
    if bias_shape is not None:
        bias = torch.randn(*bias_shape, MOST, keys, requires_grad=True, device=device)
    operands = (q, k, v, offsets, kv_offsets, bias)
    options = (None, None, MOST, keys, 0.25, 0.5, -1, -1, "")
    torch.library.opcheck(torch.ops.faceter.jagged_attention_forward.default, (*operands, *options))
    detached = [None if x is None else x.detach() for x in operands]
    o, lse = torch.ops.faceter.jagged_attention_forward(*detached, *options)
    for grad_lse, wanted in (
        (None, (True, True, bias is not None)),
        (torch.randn_like(lse), (True, False, False)),
        (torch.randn_like(lse), (False, True, False)),
    ):
        args = (torch.randn_like(o), grad_lse, o, lse, *detached, *options, *wanted)
        torch.library.opcheck(torch.ops.faceter.jagged_attention_backward.default, args)


@each_device
def test_a_bias_and_lse_in_one_graph_without_recompilation(device):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def total(q, k, v, offsets, bias):
        o, lse = attend(q, k, v, offsets, MOST, bias=bias, return_lse=True)
        return o.square().sum() + lse[lse > float("-inf")].sum()

    compiled = torch.compile(total, backend=counter, dynamic=True)
    counts = []
    for batch in range(3, 13):  # the first size is not that of another dim, which torch.compile would take for the same
        offsets, leaves = inputs([2 + batch % 3, *range(1, batch)], device)
        leaves.append(torch.randn(batch, 1, MOST, MOST, device=device, requires_grad=True))
        q, k, v, bias = leaves
        found = torch.autograd.grad(compiled(q, k, v, offsets, bias), leaves)
        expected = torch.autograd.grad(total(q, k, v, offsets, bias), leaves)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 10


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast_leaves_a_float32_bias(dtype, device):
    offsets, (q, k, v) = inputs(LENGTHS, device)
    bias = torch.randn(1, HEADS, MOST, MOST, device=device).to(dtype).requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        o = attend(q, k, v, offsets, MOST, bias=bias)
    used = bias.detach() if dtype == torch.float32 else bias.detach().bfloat16()
    assert torch.equal(o, attend(*(x.detach().bfloat16() for x in (q, k, v)), offsets, MOST, bias=used))
    o.float().sum().backward()
    assert bias.grad.dtype == dtype


@each_device
def test_flops_of_a_window(device):
    offsets, leaves = inputs(LENGTHS, device)
    with FlopCounterMode(display=False) as counter:
        attend(*leaves, offsets, window=(2, 1))
    pairs = sum(max(0, min(n, i + 2) - max(0, i - 2)) for n in LENGTHS for i in range(n))
    assert counter.get_total_flops() == 4 * HEADS * DIM * pairs


def test_meta_tensors_have_shapes_of_all_outputs():
    q = torch.empty(7, HEADS, DIM, device="meta", dtype=torch.bfloat16, requires_grad=True)
    k = torch.empty(50, HEADS, DIM, device="meta", dtype=torch.bfloat16)
    bias = torch.empty(1, HEADS, 7, 20, device="meta", requires_grad=True)
    offsets = torch.empty(5, device="meta", dtype=torch.int32)
    o, lse = jagged_attention(q, k, k, kv_offsets=offsets, max_kv=20, bias=bias, return_lse=True)
    assert (o.shape, o.dtype) == ((4, 7, HEADS, DIM), torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((4, 7, HEADS), torch.float32)
    dq, dbias = torch.autograd.grad([o, lse], [q, bias], [o, lse])
    assert (dq.shape, dbias.shape, dbias.dtype) == (q.shape, bias.shape, torch.float32)


def test_a_bias_is_checked_for_derivatives_that_there_are_not():
    offsets, (q, k, v) = inputs(LENGTHS, requires_grad=False)
    bias = torch.randn(1, 1, MOST, MOST)
    with pytest.raises(NotImplementedError, match=r"jagged_attention has no torch\.func"):
        torch.func.grad(lambda x: attend(q, k, v, offsets, MOST, bias=x).sum())(bias)
