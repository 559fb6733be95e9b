"""Offsets that are wrong, unchecked: numbers may be wrong, memory is safe.

Inputs lie between NaN, which no example may read. A GPU's memory checker says more:

    FACETER_TEST_DEVICE=cuda compute-sanitizer python -m pytest kernels/illegal_offsets_test.py
"""

import pytest
import torch

from faceter.kernels.block_attention.op import block_attention
from faceter.kernels.gdpa.op import gdpa
from faceter.kernels.jagged_attention.op import jagged_attention
from faceter.kernels.testing_devices import TRITON_DEVICE, poisoned_memory

pytestmark = pytest.mark.skipif(TRITON_DEVICE is None, reason="needs a GPU, or TRITON_INTERPRET=1")
ROWS = 70
ILLEGAL = {
    "not from 0": [3, 40, 70],
    "falling": [0, 60, 20],
    "beyond the rows": [0, 50, 500],
    "below 0": [-30, 20, 70],
    "longer than the bound": [0, 65, 70],
    "far away": [0, 1 << 40, -(1 << 40)],
}


def between_nan():
    """(ROWS, 2, 16) of ones with NaN before and after."""
    whole = torch.full((3 * ROWS, 2, 16), float("nan"), device=TRITON_DEVICE)
    part = whole[ROWS : 2 * ROWS]
    part.fill_(1.0)
    return part.requires_grad_()


def attend(op, q, k, v, offsets):
    if op is block_attention:
        return op(q, k, v, offsets=offsets, max_len=8, impl="triton")
    return op(q, k, v, q_offsets=offsets, kv_offsets=offsets, max_q=8, max_kv=8, impl="triton")


@pytest.mark.parametrize("offsets", ILLEGAL.values(), ids=ILLEGAL)
@pytest.mark.parametrize("op", [gdpa, jagged_attention, block_attention])
def test_nothing_outside_is_read_or_written(op, offsets):
    q, k, v = (between_nan() for _ in range(3))
    first, last = (torch.tensor(x, device=TRITON_DEVICE) for x in ([0, 0, 0], offsets))
    assert (attend(op, q, k, v, first) == 0).all()
    o = attend(op, q, k, v, last)
    gradients = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
    if TRITON_DEVICE == "cuda":
        torch.cuda.synchronize()
    # All that a key of ones can give; what no example has is not written.
    with poisoned_memory():
        o = attend(op, q, k, v, last)
    low, high = max(0, min(offsets[0], ROWS)), max(0, min(offsets[1], ROWS))
    assert o[low:high].isfinite().all()
    assert all(x.shape == q.shape for x in gradients)
