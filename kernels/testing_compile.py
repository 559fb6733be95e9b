"""Operators under torch's machinery: torch.compile, autocast, checkpointing, FLOP counter, meta tensors, transforms.

Each function of CHECKS is a test of one `Attend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from faceter.kernels.testing_problems import offsets_of

LENGTHS = [3, 0, 17, 1]
HEADS, DIM = 2, 16


@dataclass(frozen=True)
class Attend:
    """An operator as self-attention of jagged rows.

    Attributes:
        name: of the operator.
        function: (q, k, v, offsets, bound of the lengths) -> o.
        pairs: length -> pairs of a row and a key that it sees in an example of that length.
    """

    name: str
    function: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
    pairs: Callable[[int], int]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, most: int = 64) -> Tensor:
        return self.function(q, k, v, offsets, most)


def inputs(lengths: list[int], device: str = "cpu", requires_grad: bool = True) -> tuple[Tensor, list[Tensor]]:
    """Offsets, and q, k, v in float32."""
    offsets, total = offsets_of(lengths, device=device), sum(lengths)
    return offsets, [torch.randn(total, HEADS, DIM, device=device, requires_grad=requires_grad) for _ in range(3)]


def one_graph_and_no_recompilation_over_50_batches(attend: Attend, device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *args: attend(*args).square().sum(), backend=counter, fullgraph=True, dynamic=True)
    generator = torch.Generator().manual_seed(0)
    counts = []
    for _ in range(50):
        batch = int(torch.randint(2, 9, (), generator=generator))
        lengths = torch.randint(0, 30, (batch,), generator=generator).tolist()
        lengths[0] += 2  # sizes 0 and 1 are special to torch.compile
        offsets, leaves = inputs(lengths, device)
        found = torch.autograd.grad(compiled(*leaves, offsets), leaves)
        expected = torch.autograd.grad(attend(*leaves, offsets).square().sum(), leaves)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 50


def layers_share_one_tile_list_in_a_compiled_graph(attend: Attend, device: str) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    def layers(x, offsets):
        for _ in range(3):
            x = x + attend(x, x, x, offsets)
        return x

    offsets, (x, _, _) = inputs(LENGTHS, device)
    aot = aot_autograd(fw_compiler=backend, bw_compiler=backend, partition_fn=min_cut_rematerialization_partition)
    torch.compile(layers, backend=aot, fullgraph=True)(x, offsets).sum().backward()
    lists = [n for graph in graphs for n in graph.graph.nodes if n.target is torch.ops.faceter.tile_list.default]
    assert len(lists) == 1


def eager_layers_share_one_tile_list_until_the_offsets_change(attend: Attend, device: str) -> None:
    offsets, (x, _, _) = inputs(LENGTHS, device, requires_grad=False)
    with torch.profiler.profile() as profile:
        before = [attend(x, x, x, offsets) for _ in range(3)][-1]
    assert sum(e.name == "faceter::tile_list" for e in profile.events()) == 1
    offsets[2] = 10  # in place
    with torch.profiler.profile() as profile:
        after = attend(x, x, x, offsets)
    assert sum(e.name == "faceter::tile_list" for e in profile.events()) == 1
    assert not torch.equal(before, after)


def autocast_casts_as_for_a_matmul(attend: Attend, device: str) -> None:
    torch._dynamo.reset()
    offsets, (q, k, v) = inputs(LENGTHS, device)
    with torch.autocast(device, torch.bfloat16):
        o = attend(q, k, v, offsets)
        compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, v, offsets)
    assert o.dtype == compiled.dtype == torch.bfloat16
    assert torch.equal(o, compiled)
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32
    assert torch.equal(o, attend(*(x.detach().bfloat16() for x in (q, k, v)), offsets))


def activation_checkpointing_changes_nothing(attend: Attend, device: str) -> None:
    offsets, leaves = inputs(LENGTHS, device)
    plain = torch.autograd.grad(attend(*leaves, offsets).square().sum(), leaves)
    saved = checkpoint(attend, *leaves, offsets, use_reentrant=False)
    for x, y in zip(torch.autograd.grad(saved.square().sum(), leaves), plain, strict=True):
        assert torch.equal(x, y)


def flops_are_those_of_actual_lengths(attend: Attend, device: str) -> None:
    offsets, leaves = inputs(LENGTHS, device)
    pairs = sum(map(attend.pairs, LENGTHS))
    with FlopCounterMode(display=False) as counter:
        o = attend(*leaves, offsets)
    assert counter.get_total_flops() == 4 * HEADS * DIM * pairs
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 10 * HEADS * DIM * pairs


def meta_tensors_have_shapes(attend: Attend, device: str) -> None:
    q = torch.empty(50, HEADS, DIM, device="meta", dtype=torch.bfloat16)
    offsets = torch.empty(5, device="meta", dtype=torch.int32)
    o = attend(q, q, q, offsets)
    assert (o.shape, o.dtype, o.stride()) == (q.shape, q.dtype, q.stride())


def derivatives_that_there_are_not_are_refused(attend: Attend, device: str) -> None:
    offsets, (q, k, v) = inputs(LENGTHS, device, requires_grad=False)

    def total(x):
        return attend(x, k, v, offsets).sum()

    def dual():
        with forward_ad.dual_level():
            return total(forward_ad.make_dual(q, q))

    calls = (
        lambda: torch.func.grad(total)(q),
        lambda: torch.func.hessian(total)(q),
        lambda: torch.func.jvp(total, (q,), (q,)),
        dual,
    )
    for call in calls:
        with pytest.raises(NotImplementedError, match=rf"{attend.name} has no (torch\.func|forward-mode)"):
            call()


def second_derivatives_are_refused(attend: Attend, device: str) -> None:
    offsets, (q, k, v) = inputs(LENGTHS, device)
    (gradient,) = torch.autograd.grad(attend(q, k, v, offsets).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=rf"{attend.name}_backward.* no autograd formula"):
        gradient.sum().backward()


def vmap_gives_each_result(attend: Attend, device: str) -> None:
    offsets, (q, k, v) = inputs(LENGTHS, device, requires_grad=False)
    both = torch.func.vmap(lambda x: attend(x, k, v, offsets))(torch.stack([q, 2 * q]))
    assert torch.equal(both, torch.stack([attend(q, k, v, offsets), attend(2 * q, k, v, offsets)]))


CHECKS = (
    one_graph_and_no_recompilation_over_50_batches,
    layers_share_one_tile_list_in_a_compiled_graph,
    eager_layers_share_one_tile_list_until_the_offsets_change,
    autocast_casts_as_for_a_matmul,
    activation_checkpointing_changes_nothing,
    flops_are_those_of_actual_lengths,
    meta_tensors_have_shapes,
    derivatives_that_there_are_not_are_refused,
    second_derivatives_are_refused,
    vmap_gives_each_result,
)
