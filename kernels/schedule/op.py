"""The tile list as a torch operator, and its cache in eager mode."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from faceter.kernels.implementations import interpreted
from faceter.kernels.schedule.reference import most_tiles, tile_list_reference

# Rows of an item. A kernel with smaller tiles has several programs for each item, so that one list serves all.
TILE = 128


@torch.library.custom_op("faceter::tile_list", mutates_args=())
def tile_list(offsets: Tensor, other_offsets: Tensor | None, total: int) -> Tensor:
    """See `reference.tile_list_reference`; tiles of TILE rows. On a GPU one small kernel, no host synchronisation."""
    batch = offsets.shape[0] - 1
    if offsets.device.type != "cpu" or interpreted():
        from faceter.kernels.schedule.triton import MOST_EXAMPLES, tile_list_triton

        if batch <= MOST_EXAMPLES:
            return tile_list_triton(offsets, other_offsets, total, TILE)
    return tile_list_reference(offsets, other_offsets, total, TILE)


@tile_list.register_fake
def _(offsets, other_offsets, total):
    return offsets.new_empty((1 + most_tiles(total, offsets.shape[0] - 1, TILE), 2), dtype=torch.int32)


_cache = WeakTensorKeyDictionary()


def cached_tile_list(offsets: Tensor, other_offsets: Tensor | None, total: int) -> Tensor:
    """`tile_list`, computed once for the same offsets: all layers and the backward pass share it.

    Under torch.compile the calls stay in the graph, where equal ones become one. In eager mode a list is kept as long
    as its offsets tensor lives and is not changed in place; inside a CUDA graph's capture nothing is kept, because the
    graph will be run again with other contents.
    """
    if torch.compiler.is_compiling() or not _cacheable(offsets, other_offsets):
        return tile_list(offsets, other_offsets, total)
    found = _cache.setdefault(offsets, {})
    key = (total, None if other_offsets is None else id(other_offsets))
    versions = (offsets._version, None if other_offsets is None else other_offsets._version)
    if key in found:
        kept, kept_versions, other = found[key]
        # An id means nothing once its tensor is gone.
        if kept_versions == versions and (other is None or other() is other_offsets):
            return kept
    fresh = tile_list(offsets, other_offsets, total)
    # Weak: two sides that refer to each other would never go.
    found[key] = (fresh, versions, None if other_offsets is None else weakref.ref(other_offsets))
    return fresh


def _cacheable(offsets: Tensor, other_offsets: Tensor | None) -> bool:
    if offsets.is_inference() or (other_offsets is not None and other_offsets.is_inference()):
        return False  # these do not count their changes
    if type(offsets) is not Tensor:
        return False
    return offsets.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
