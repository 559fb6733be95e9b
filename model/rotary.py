"""Rotary embeddings of queries and keys, by position or by time.

Rotary (RoFormer, arXiv 2104.09864): a head's D dims form D / 2 pairs; pair i of P of a row at coordinate c is turned by
the angle c * base^(-i / P), i from 0. The product of a query and a key then depends on the difference of their
coordinates only. The coordinate is the position in the sequence, or ROTE's tau = log(1 + dt / t_scale), dt the time
from the event to the request (Kunlun, arXiv 2602.10016). Different pairs of a head may be turned by different
coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

POSITION_BASE = 10000.0
# tau stays below 15 for a century in seconds: with the base of positions all but the first pairs would hardly turn.
TIME_BASE = 100.0


def position_angles(rows: int, pairs: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Angles (1, N, P) by position: row t is at t."""
    return _angles(torch.arange(rows, device=device, dtype=dtype)[None], pairs, POSITION_BASE)


def time_angles(delta_BN: Tensor, pairs: int, time_scale: float) -> Tensor:
    """Angles (B, N, P), at least float32, by time.

    Args:
        delta_BN: (B, N) seconds from the event to the request, >= 0.
        pairs: P.
        time_scale: t_scale in seconds.
    """
    delta_BN = delta_BN.to(torch.promote_types(delta_BN.dtype, torch.float32))
    return _angles(torch.log1p(delta_BN / time_scale), pairs, TIME_BASE)


def rotate(x_BNHD: Tensor, angles_BNP: Tensor) -> Tensor:
    """Turns each pair (x, y), dims i and i + D / 2 of a head, by its angle a: (x cos a - y sin a, x sin a + y cos a).

    Args:
        x_BNHD: (B, N, H, D) queries or keys.
        angles_BNP: (B or 1, N, D / 2).

    Returns:
        (B, N, H, D) of x's dtype.
    """
    cos = angles_BNP.cos().to(x_BNHD.dtype)[:, :, None]
    sin = angles_BNP.sin().to(x_BNHD.dtype)[:, :, None]
    x, y = x_BNHD.chunk(2, dim=-1)
    return torch.cat([x * cos - y * sin, x * sin + y * cos], dim=-1)


def _angles(coordinates_BN: Tensor, pairs: int, base: float) -> Tensor:
    # Made on the fly: a buffer would be lost when a model built on "meta" gets its memory.
    index = torch.arange(pairs, device=coordinates_BN.device, dtype=coordinates_BN.dtype)
    return coordinates_BN[..., None] * base ** (-index / pairs)
