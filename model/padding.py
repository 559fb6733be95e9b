"""Between jagged rows (values, offsets) and padded ones (rows at the front, zeros behind, a mask of the valid ones)."""

from __future__ import annotations

import fbgemm_gpu  # registers torch.ops.fbgemm
import torch
from torch import Tensor

# The CPU build of fbgemm has no kernels for a GPU, and no build has one for float64: there plain indexing serves.
_HAS_GPU_KERNELS = fbgemm_gpu.__variant__ != "cpu"


def _fbgemm_can(values: Tensor) -> bool:
    return values.dtype != torch.float64 and (values.device.type != "cuda" or _HAS_GPU_KERNELS)


def pad_jagged(values_TE: Tensor, offsets: Tensor, max_length: int) -> tuple[Tensor, Tensor]:
    """Jagged to padded; differentiable in the values.

    Args:
        values_TE: (T, E), any floating or int64 dtype.
        offsets: (B + 1,) int64; example b's rows are [offsets[b], offsets[b + 1]).
        max_length: N; of a longer example the first N rows are kept.

    Returns:
        (B, N, E) of the values' dtype, and the mask (B, N) bool, True = valid.
    """
    lengths_B = offsets.diff()
    mask_BN = torch.arange(max_length, device=offsets.device) < lengths_B[:, None]
    if _fbgemm_can(values_TE):
        return torch.ops.fbgemm.jagged_to_padded_dense(values_TE, [offsets], [max_length]), mask_BN
    slots, rows = lengths_B.shape[0] * max_length, values_TE.shape[0]
    padded = values_TE.new_zeros(slots + 1, values_TE.shape[1])  # one more: where rows that are cut off go
    padded = padded.index_copy(0, _slots(offsets, rows, max_length), values_TE)
    return padded[:slots].view(-1, max_length, values_TE.shape[1]), mask_BN


def unpad_jagged(padded_BNE: Tensor, offsets: Tensor, rows: int) -> Tensor:
    """The inverse of `pad_jagged`; differentiable. Rows that were cut off come back as zeros.

    Args:
        padded_BNE: (B, N, E); what is past an example's length is not read.
        offsets: (B + 1,) int64.
        rows: T = offsets[-1], as a Python int because reading it from a GPU would wait for it.

    Returns:
        (T, E).
    """
    if _fbgemm_can(padded_BNE):
        return torch.ops.fbgemm.dense_to_jagged(padded_BNE, [offsets], rows)[0]
    flat = torch.cat([padded_BNE.flatten(0, 1), padded_BNE.new_zeros(1, padded_BNE.shape[2])])
    return flat.index_select(0, _slots(offsets, rows, padded_BNE.shape[1]))


def _slots(offsets: Tensor, rows: int, max_length: int) -> Tensor:
    """(T,) where each jagged row lies among the B * N padded ones; B * N for those cut off."""
    batch = offsets.shape[0] - 1
    row_T = torch.repeat_interleave(torch.arange(batch, device=offsets.device), offsets.diff(), output_size=rows)
    position_T = torch.arange(rows, device=offsets.device) - offsets[row_T]
    return torch.where(position_T < max_length, row_T * max_length + position_T, batch * max_length)
