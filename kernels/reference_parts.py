"""What the definitions of attention operators share, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_of(x: Tensor, offsets: Tensor | None, b: int) -> Tensor:
    """(N, H, D): the rows of example b, of an operand in any form."""
    if offsets is not None:
        return x[offsets[b] : offsets[b + 1]]
    return x[b] if x.dim() == 4 else x


def rows_of_output(x: Tensor, q_offsets: Tensor | None, b: int) -> Tensor:
    """Likewise of an output or its gradient, which no example shares."""
    return x[b] if q_offsets is None else x[q_offsets[b] : q_offsets[b + 1]]


def in_window(n: int, m: int, left: int, right: int, device: torch.device) -> Tensor:
    """(N, M) bool: row i of the queries sees key j if i - left <= j <= i + right; -1 = no bound."""
    distance = torch.arange(m, device=device) - torch.arange(n, device=device)[:, None]
    seen = torch.ones(n, m, dtype=torch.bool, device=device)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
