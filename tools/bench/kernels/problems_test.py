"""Problems as they are drawn: FLOPs, documents, rows of an example."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from faceter.tools.bench.kernels.peers.ours import faceter
from faceter.tools.bench.kernels.problems import draw
from faceter.tools.bench.kernels.workloads import workloads

CPU = torch.device("cpu")
# One of each: family and kind of lengths.
WORKLOADS = {w.tiny().name: w.tiny() for w in workloads()}


@pytest.mark.parametrize("name", WORKLOADS)
def test_flops_are_those_that_the_operator_counts(name):
    problem = draw(WORKLOADS[name], CPU)
    run = faceter(problem)
    with FlopCounterMode(display=False) as counter:
        o = run.forward(*run.inputs[0])
    assert counter.get_total_flops() == problem.flops() > 0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(o, run.inputs[0], run.grads[0])
    assert counter.get_total_flops() == 5 * problem.flops() // 2


def test_documents_are_the_blocks():
    (workload,) = {w.tiny() for w in workloads() if w.block and w.lengths == 0.7}
    problem = draw(workload, CPU)
    documents, rows = problem.documents, problem.copies[0][0]
    blocks = [block for b in range(problem.batch) for block in problem.q.example(rows, b).split(workload.block)]
    found = [documents.q.example(rows, b) for b in range(documents.batch)]
    assert len(found) == len(blocks) > problem.batch
    assert all(map(torch.equal, found, blocks))


def test_copies_differ_and_are_drawn_alike():
    workload = next(iter(WORKLOADS.values()))
    first, again = draw(workload, CPU), draw(workload, CPU)
    assert not torch.equal(first.copies[0][0], first.copies[1][0])
    assert torch.equal(first.copies[1][3], again.copies[1][3])
    assert all(x.count_nonzero() == x.numel() for x in first.copies[0])


def test_bytes_of_memory_bound_work():
    (workload,) = {w.tiny() for w in workloads() if w.block and w.lengths == 0.7}
    problem = draw(workload, CPU)
    tensor = 2 * 2 * 16 * int(problem.q.lengths.sum())  # bf16, heads, dim
    assert [problem.bytes(d) / tensor for d in ("forward", "backward", "both")] == [4, 7, 11]
