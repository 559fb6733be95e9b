"""Tile lists: all tiles once, longest loops first, the kernel as its twin, the cache."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faceter.kernels.schedule.op import TILE, cached_tile_list, tile_list
from faceter.kernels.schedule.reference import most_tiles, tile_list_reference
from faceter.kernels.testing_devices import TRITON_DEVICE
from faceter.kernels.testing_problems import offsets_of

on_triton = pytest.mark.skipif(TRITON_DEVICE is None, reason="needs a GPU, or TRITON_INTERPRET=1")
lengths = st.lists(st.one_of(st.integers(0, 300), st.sampled_from([0, 1, 127, 128, 129, 5000])), max_size=40)


@given(lengths, st.integers(0, 300), st.data())
def test_every_row_is_in_one_tile_and_long_loops_come_first(rows, tail, data):
    others = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 50), min_size=len(rows), max_size=len(rows))))
    total = sum(rows) + tail
    other_offsets = None if others is None else offsets_of(others)
    found = tile_list_reference(offsets_of(rows, torch.int32), other_offsets, total, 64)
    assert found.shape == (1 + most_tiles(total, len(rows), 64), 2)
    count = int(found[0, 0])
    tiles = found[1 : 1 + count].tolist()
    assert sorted(map(tuple, tiles)) == [
        (b, row) for b, n in enumerate([*rows, tail]) for row in range(0, n, 64)
    ]  # fmt: skip
    costs = [-1 if b == len(rows) else 0 if others is None else others[b] for b, _ in tiles]
    assert costs == sorted(costs, reverse=True)


@on_triton
@given(lengths, st.integers(0, 300), st.data())
def test_the_kernel_does_what_its_twin_does(rows, tail, data):
    from faceter.kernels.schedule.triton import tile_list_triton

    others = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 50), min_size=len(rows), max_size=len(rows))))
    offsets = offsets_of(rows, data.draw(st.sampled_from((torch.int32, torch.int64))), TRITON_DEVICE)
    other_offsets = None if others is None else offsets_of(others, torch.int64, TRITON_DEVICE)
    expected = tile_list_reference(offsets, other_offsets, sum(rows) + tail, TILE)
    found = tile_list_triton(offsets, other_offsets, sum(rows) + tail, TILE)
    assert torch.equal(found, expected)


@on_triton
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20), st.integers(0, 500))
def test_illegal_offsets_write_nothing_past_the_list(offsets, total):
    from faceter.kernels.schedule import triton

    whole = torch.full(
        (4 * most_tiles(total, len(offsets) - 1, TILE) + 64, 2), -7, dtype=torch.int32, device=TRITON_DEVICE
    )
    most = most_tiles(total, len(offsets) - 1, TILE)
    values = torch.tensor(offsets, device=TRITON_DEVICE)
    triton._tile_list_kernel[(triton.triton.cdiv(len(offsets), triton._OWN),)](
        values, values, whole, len(offsets) - 1, total, TILE, most, True, triton._OWN, triton._OTHERS, triton._AT_ONCE
    )
    assert (whole[1 + most :] == -7).all()
    assert 0 <= int(whole[0, 0]) <= most


def test_opcheck():
    offsets = offsets_of([3, 0, 200])
    torch.library.opcheck(tile_list, (offsets, None, 210))
    torch.library.opcheck(tile_list, (offsets, offsets_of([1, 2, 3]), 210))


def test_the_cache_knows_tensors_versions_and_totals():
    offsets, others = offsets_of([3, 0, 200]), offsets_of([1, 5, 3])
    first = cached_tile_list(offsets, others, 203)
    assert cached_tile_list(offsets, others, 203) is first
    assert cached_tile_list(offsets, None, 203) is not first
    assert cached_tile_list(offsets, others, 400) is not first
    assert cached_tile_list(offsets.clone(), others, 203) is not first
    others[1:] += 5  # in place
    assert cached_tile_list(offsets, others, 203) is not first


def test_the_cache_keeps_nothing_alive():
    from faceter.kernels.schedule.op import _cache

    gc.collect()
    before = len(_cache)
    offsets, others = offsets_of([3]), offsets_of([4])
    cached_tile_list(offsets, others, 3)
    cached_tile_list(others, offsets, 4)
    assert len(_cache) == before + 2
    del offsets, others
    gc.collect()
    assert len(_cache) == before
