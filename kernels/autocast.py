"""The autocast rule of attention operators: as for a matmul."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype where autocast is on (float64 stays, as in a matmul), else as they are."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # on "meta" torch would raise
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)
