import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from faceter.data.balance import balanced_order


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    sub_batch=st.integers(1, 8),
    seed=st.integers(0, 9),
)
def test_is_a_permutation_that_moves_whole_runs(sizes, sub_batch, seed):
    totals = np.random.default_rng(seed).integers(0, 50, sum(sizes))
    order = balanced_order(totals, sizes, sub_batch)
    assert np.array_equal(np.sort(order), np.arange(sum(sizes)))
    at = 0
    for size in sizes:
        for run in range(size // sub_batch):
            start = at + run * sub_batch
            assert order[start] % sub_batch == 0
            assert np.array_equal(order[start : start + sub_batch], order[start] + np.arange(sub_batch))
        at += size


def test_spread_between_batches_shrinks():
    lengths = np.minimum(np.random.default_rng(0).lognormal(4.0, 1.5, 8192), 2000).astype(np.int64)
    order = balanced_order(lengths, [1024] * 8, 128)
    before = lengths.reshape(8, -1).sum(1)
    after = lengths[order].reshape(8, -1).sum(1)
    assert after.sum() == before.sum()
    assert np.ptp(after) < 0.1 * np.ptp(before)


def test_heavy_runs_go_to_different_pieces_and_light_ones_fill_up():
    # Runs of 4 rows that total 36, 36, 20 and 0 events; then 2 rows that fill no run.
    lengths = np.array([9] * 8 + [5] * 4 + [0] * 4 + [1, 2])
    order = balanced_order(lengths, [9, 9], 4)
    assert lengths[order].reshape(2, -1).sum(1).tolist() == [36 + 20 + 1, 36 + 0 + 2]
    assert order[[8, 17]].tolist() == [16, 17]
