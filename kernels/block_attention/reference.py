"""The definition of block attention: a loop over examples and blocks, in any dtype, differentiable by autograd."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from faceter.kernels.reference_parts import wide


def block_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    block: int,
    qk_scale: float,
    out_scale: float,
) -> Tensor:
    """out_scale * softmax(qk_scale * q k^T) v in each block and head; arguments as in `op.block_attention_forward`."""
    out = q.new_zeros(q.shape)
    for rows in blocks_of(q, offsets, block):
        q_NHD, k_NHD = (turned(x, cos, sin, rows) for x in (q, k))
        p_HNM = torch.softmax(qk_scale * torch.einsum("nhd,mhd->hnm", q_NHD, k_NHD), dim=-1)
        out[rows] = out_scale * torch.einsum("hnm,mhd->nhd", p_HNM, v[rows])
    return out


def blocks_of(q: Tensor, offsets: Tensor | None, block: int) -> Iterator[slice | tuple[int, slice]]:
    """The index of each block that has rows."""
    bounds = [(0, q.shape[1])] * len(q) if offsets is None else itertools.pairwise(offsets.tolist())
    for b, (begin, end) in enumerate(bounds):
        for first in range(begin, end, block):
            rows = slice(first, min(first + block, end))
            yield (b, rows) if offsets is None else rows


def turned(x: Tensor, cos: Tensor | None, sin: Tensor | None, rows: slice | tuple[int, slice]) -> Tensor:
    """(N, H, D): these rows of x, turned if there are angles."""
    if cos is None:
        return x[rows]
    return turn(x[rows], *(a.expand(*x.shape[:-2], -1)[rows][:, None].to(x.dtype) for a in (cos, sin)))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns dims i and i + D / 2, a pair (x, y), by an angle: (x cos - y sin, x sin + y cos).

    Source: RoFormer, arXiv 2104.09864.

    Args:
        x: (..., D).
        cos, sin: (..., D / 2), broadcast to x's rows.
    """
    x, y = x.chunk(2, dim=-1)
    return torch.cat([x * cos - y * sin, x * sin + y * cos], dim=-1)


def block_attention_forward_reference(
    q, k, v, offsets, cos, sin, schedule, max_len, block, qk_scale, out_scale
) -> Tensor:  # fmt: skip
    """As `op.block_attention_forward`; 16-bit inputs are computed with in float32."""
    return block_attention_reference(wide(q), wide(k), wide(v), offsets, cos, sin, block, qk_scale, out_scale).to(
        q.dtype
    )


def block_attention_backward_reference(
    grad, q, k, v, offsets, cos, sin, schedule, max_len, block, qk_scale, out_scale
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `op.block_attention_backward`: the derivative written out, because inside an operator there is no autograd."""
    dtype, (grad, q, k, v) = q.dtype, map(wide, (grad, q, k, v))
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for rows in blocks_of(q, offsets, block):
        q_NHD, k_NHD = (turned(x, cos, sin, rows) for x in (q, k))
        do_NHD = out_scale * grad[rows]
        p_HNM = torch.softmax(qk_scale * torch.einsum("nhd,mhd->hnm", q_NHD, k_NHD), dim=-1)
        dp_HNM = torch.einsum("nhd,mhd->hnm", do_NHD, v[rows])
        ds_HNM = qk_scale * p_HNM * (dp_HNM - (p_HNM * dp_HNM).sum(-1, keepdim=True))
        dq[rows] = torch.einsum("hnm,mhd->nhd", ds_HNM, k_NHD)
        dk[rows] = torch.einsum("hnm,nhd->mhd", ds_HNM, q_NHD)
        dv[rows] = torch.einsum("hnm,nhd->mhd", p_HNM, do_NHD)
        if cos is not None:  # a turn's transpose turns back
            dq[rows], dk[rows] = (turned(x, cos, -sin, rows) for x in (dq, dk))
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)
