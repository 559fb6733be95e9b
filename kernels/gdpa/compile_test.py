"""GDPA under torch's machinery: opcheck, torch.compile, autocast, checkpointing, FLOP counter, meta tensors."""

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.testing_problems import offsets_of

LENGTHS = [3, 0, 17, 1]
HEADS, DIM = 2, 16


def inputs(lengths, requires_grad=True, dtype=torch.float32):
    offsets, total = offsets_of(lengths), sum(lengths)
    return offsets, [torch.randn(total, HEADS, DIM, dtype=dtype, requires_grad=requires_grad) for _ in range(3)]


def attend(q, k, v, offsets, most=64, **options):
    sides = {"q_offsets": offsets, "kv_offsets": offsets, "max_q": most, "max_kv": most}
    return gdpa(q, k, v, **sides, qk_scale=0.25, **options)


@pytest.mark.parametrize("form", ["jagged", "dense", "shared"])
def test_opcheck(form):
    offsets, (q, k, v) = inputs(LENGTHS)
    kv_offsets = offsets
    if form != "jagged":
        shape = (len(LENGTHS), 5, HEADS, DIM) if form == "dense" else (5, HEADS, DIM)
        k, v = (torch.randn(shape, requires_grad=True) for _ in range(2))
        kv_offsets = None
    options = (None, None, 17, 17 if form == "jagged" else 5, "gelu,silu", 0.25, 0.5, -1, -1, "")
    torch.library.opcheck(torch.ops.faceter.gdpa_forward.default, (q, k, v, offsets, kv_offsets, *options))
    grad = torch.randn_like(q)
    detached = [x.detach() for x in (grad, q, k, v)]
    torch.library.opcheck(torch.ops.faceter.gdpa_backward.default, (*detached, offsets, kv_offsets, *options))


def test_one_graph_and_no_recompilation_over_50_batches():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *args: attend(*args).square().sum(), backend=counter, fullgraph=True, dynamic=True)
    generator = torch.Generator().manual_seed(0)
    counts = []
    for _ in range(50):
        batch = int(torch.randint(2, 9, (), generator=generator))
        lengths = torch.randint(0, 30, (batch,), generator=generator).tolist()
        lengths[0] += 2  # sizes 0 and 1 are special to torch.compile
        offsets, leaves = inputs(lengths)
        loss = compiled(*leaves, offsets)
        found = torch.autograd.grad(loss, leaves)
        expected = torch.autograd.grad(attend(*leaves, offsets).square().sum(), leaves)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 50


def test_layers_share_one_tile_list_in_a_compiled_graph():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    def layers(x, offsets):
        for _ in range(3):
            x = x + attend(x, x, x, offsets)
        return x

    offsets, (x, _, _) = inputs(LENGTHS)
    aot = torch._dynamo.backends.common.aot_autograd(
        fw_compiler=backend, bw_compiler=backend, partition_fn=min_cut_rematerialization_partition
    )
    compiled = torch.compile(layers, backend=aot, fullgraph=True)
    compiled(x, offsets).sum().backward()
    lists = [n for graph in graphs for n in graph.graph.nodes if n.target is torch.ops.faceter.tile_list.default]
    assert len(lists) == 1


def test_eager_layers_share_one_tile_list_until_the_offsets_change():
    offsets, (x, _, _) = inputs(LENGTHS, requires_grad=False)
    with torch.profiler.profile() as profile:
        before = [attend(x, x, x, offsets) for _ in range(3)][-1]
    assert sum(e.name == "faceter::tile_list" for e in profile.events()) == 1
    offsets[2] = 10  # in place
    with torch.profiler.profile() as profile:
        after = attend(x, x, x, offsets)
    assert sum(e.name == "faceter::tile_list" for e in profile.events()) == 1
    assert not torch.equal(before, after)


def test_autocast_casts_as_for_a_matmul():
    offsets, (q, k, v) = inputs(LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        o = attend(q, k, v, offsets)
        compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, v, offsets)
    assert o.dtype == compiled.dtype == torch.bfloat16
    assert torch.equal(o, compiled)
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32
    assert torch.equal(o, attend(*(x.detach().bfloat16() for x in (q, k, v)), offsets))


def test_activation_checkpointing_changes_nothing():
    offsets, leaves = inputs(LENGTHS)
    plain = torch.autograd.grad(attend(*leaves, offsets).square().sum(), leaves)
    saved = checkpoint(attend, *leaves, offsets, use_reentrant=False)
    for x, y in zip(torch.autograd.grad(saved.square().sum(), leaves), plain, strict=True):
        assert torch.equal(x, y)


def test_flops_are_those_of_actual_lengths_and_windows():
    offsets, leaves = inputs(LENGTHS)
    with FlopCounterMode(display=False) as counter:
        o = attend(*leaves, offsets)
    pairs = sum(n * n for n in LENGTHS)
    assert counter.get_total_flops() == 4 * HEADS * DIM * pairs
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 10 * HEADS * DIM * pairs
    with FlopCounterMode(display=False) as counter:
        attend(*leaves, offsets, window=(2, 1))
    pairs = sum(max(0, min(n, i + 2) - max(0, i - 2)) for n in LENGTHS for i in range(n))
    assert counter.get_total_flops() == 4 * HEADS * DIM * pairs


def test_meta_tensors_have_shapes():
    q = torch.empty(50, HEADS, DIM, device="meta", dtype=torch.bfloat16)
    offsets = torch.empty(5, device="meta", dtype=torch.int32)
    o = attend(q, q, q, offsets)
    assert (o.shape, o.dtype, o.stride()) == (q.shape, q.dtype, q.stride())


@pytest.mark.parametrize("transform", ["grad", "jvp", "hessian", "dual"])
def test_derivatives_that_there_are_not_are_refused(transform):
    offsets, (q, k, v) = inputs(LENGTHS, requires_grad=False)

    def total(x):
        return attend(x, k, v, offsets).sum()

    def dual():
        with forward_ad.dual_level():
            return total(forward_ad.make_dual(q, q))

    calls = {
        "grad": lambda: torch.func.grad(total)(q),
        "hessian": lambda: torch.func.hessian(total)(q),
        "jvp": lambda: torch.func.jvp(total, (q,), (q,)),
        "dual": dual,
    }
    with pytest.raises(NotImplementedError, match=r"gdpa has no (torch\.func|forward-mode)"):
        calls[transform]()


def test_second_derivatives_are_refused():
    offsets, (q, k, v) = inputs(LENGTHS)
    (gradient,) = torch.autograd.grad(attend(q, k, v, offsets).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"gdpa_backward.* no autograd formula"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_gives_each_result():
    offsets, (q, k, v) = inputs(LENGTHS, requires_grad=False)
    both = torch.func.vmap(lambda x: attend(x, k, v, offsets))(torch.stack([q, 2 * q]))
    assert torch.equal(both, torch.stack([attend(q, k, v, offsets), attend(2 * q, k, v, offsets)]))
