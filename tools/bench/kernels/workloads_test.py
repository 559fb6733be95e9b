"""The table of workloads: lengths as their kind says, names, and who takes part."""

import pytest
import torch

from faceter.tools.bench.kernels.peers import PEERS
from faceter.tools.bench.kernels.workloads import (
    COMPILED,
    FACETER,
    GIANT,
    LOG_NORMAL,
    SDPA_CUDNN,
    SDPA_MASK,
    TINY,
    VARLEN,
    draw_lengths,
    workloads,
)


def draw(kind, most=1000, batch=20_000):
    return draw_lengths(kind, batch, most, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "s, low, high", [(1.0, 1000, 1000), (0.7, 400, 1000), (0.5, 0, 1000), (0.25, 1, 500), (0.1, 1, 200)]
)
def test_sparsity_is_a_range_and_the_mean(s, low, high):
    lengths = draw(s)
    assert (int(lengths.min()), int(lengths.max())) == (low, high)  # 20,000 draws reach both ends
    # Uniform: the mean is that of the ends, to 5 of its standard deviations.
    assert abs(float(lengths.double().mean()) - (low + high) / 2) <= 5 * (high - low) / 12**0.5 / 20_000**0.5
    assert s == pytest.approx((low + high) / 2 / 1000, abs=1e-3)


def test_log_normal():
    lengths = draw(LOG_NORMAL, most=30_000).double()
    assert int(lengths.min()) >= 1
    assert int(lengths.max()) == 30_000
    # exp of a normal of mean log(most / 3) - 1 / 2: half of them are below this, and the clipped mean a bit below a
    # third of `most`.
    assert float(lengths.median()) == pytest.approx(10_000 * 0.6065, rel=0.05)
    assert 0.27 < float(lengths.mean()) / 30_000 < 1 / 3


def test_one_giant_among_tiny():
    lengths = draw(GIANT, batch=100).tolist()
    assert lengths.count(1000) == 1
    assert max(n for n in lengths if n != 1000) <= TINY
    assert min(lengths) >= 1


def test_tiny_lengths_are_legal():
    for kind in (0.1, 0.5, 0.7, 1.0, LOG_NORMAL, GIANT):
        assert 0 <= int(draw(kind, most=3, batch=50).min()) <= int(draw(kind, most=3, batch=50).max()) <= 3


def test_names_and_peers():
    names = [workload.name for workload in workloads()]
    assert len(set(names)) == len(names)
    for workload in workloads():
        assert set(workload.peers) < set(PEERS) - {FACETER}
        assert set(workload.quick or ()) <= set(workload.peers)


def test_the_peers_of_each_claim_take_part_in_the_quick_run():
    quick = [workload for workload in workloads() if workload.quick is not None]
    padded = ("gdpa-cross", "gdpa-self", "gdpa-small", "gdpa-pffn", "jagged-self")
    assert all(COMPILED in w.quick for w in quick if w.family in padded and w.lengths == 0.5)
    jagged_self = [w for w in quick if w.family == "jagged-self" and w.lengths in (0.5, 1.0)]
    assert {(w.dim, w.max_q, w.lengths) for w in jagged_self} == {
        (dim, n, s) for dim in (64, 128) for n in (512, 1024, 2048, 4096) for s in (0.5, 1.0)
    }
    assert all({VARLEN, SDPA_CUDNN if w.lengths == 1.0 else SDPA_MASK} <= set(w.quick) for w in jagged_self)
    assert {"block", "schedule-gdpa", "schedule-jagged", "pooling"} <= {w.family for w in quick}
