"""The definition of GDPA: a loop over examples, in any dtype, differentiable by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from faceter.kernels.activations import ACTIVATIONS, names_of_heads
from faceter.kernels.operands import batch_size


def gdpa_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    activation: str,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
) -> Tensor:
    """out_scale * act(qk_scale * q k^T) v for each example and head; arguments as in `op.gdpa_forward`."""
    names = names_of_heads(activation, q.shape[-2])
    out = q.new_zeros(q.shape if q_offsets is not None else (batch_size(q, k, q_offsets, kv_offsets), *q.shape[-3:]))
    parts = []
    for b in range(batch_size(q, k, q_offsets, kv_offsets)):
        q_NHD, k_MHD, v_MHD = (rows_of(x, o, b) for x, o in ((q, q_offsets), (k, kv_offsets), (v, kv_offsets)))
        s_HNM = qk_scale * torch.einsum("nhd,mhd->hnm", q_NHD, k_MHD)
        p_HNM = torch.stack([ACTIVATIONS[name].function(s) for name, s in zip(names, s_HNM, strict=True)])
        p_HNM = p_HNM * in_window(len(q_NHD), len(k_MHD), left, right, q.device)
        parts.append(out_scale * torch.einsum("hnm,mhd->nhd", p_HNM, v_MHD))
    if q_offsets is None:
        return torch.stack(parts) if parts else out
    rest = out[sum(map(len, parts)) :]
    return torch.cat([*parts, rest])


def rows_of(x: Tensor, offsets: Tensor | None, b: int) -> Tensor:
    """(N, H, D): the rows of example b."""
    if offsets is not None:
        return x[offsets[b] : offsets[b + 1]]
    return x[b] if x.dim() == 4 else x


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


def gdpa_forward_reference(q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv, *options) -> Tensor:
    """As `op.gdpa_forward`; 16-bit inputs are computed with in float32."""
    return gdpa_reference(wide(q), wide(k), wide(v), q_offsets, kv_offsets, *options).to(q.dtype)


def gdpa_backward_reference(
    grad, q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv, activation, qk_scale, out_scale, left,
    right,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `op.gdpa_backward`: the derivative written out, because inside an operator there is no autograd."""
    dtype, (grad, q, k, v) = q.dtype, map(wide, (grad, q, k, v))
    functions = [ACTIVATIONS[name] for name in names_of_heads(activation, q.shape[-2])]
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for b in range(batch_size(q, k, q_offsets, kv_offsets)):
        q_NHD, do_NHD = (
            rows_of(q, q_offsets, b),
            out_scale * (grad[b] if q_offsets is None else rows_of(grad, q_offsets, b)),
        )
        k_MHD, v_MHD = rows_of(k, kv_offsets, b), rows_of(v, kv_offsets, b)
        seen = in_window(len(q_NHD), len(k_MHD), left, right, q.device)
        s_HNM = qk_scale * torch.einsum("nhd,mhd->hnm", q_NHD, k_MHD)
        p_HNM = seen * torch.stack([f.function(s) for f, s in zip(functions, s_HNM, strict=True)])
        slope_HNM = seen * torch.stack([f.derivative(s) for f, s in zip(functions, s_HNM, strict=True)])
        ds_HNM = qk_scale * slope_HNM * torch.einsum("nhd,mhd->hnm", do_NHD, v_MHD)
        rows_of(dq, q_offsets, b).add_(torch.einsum("hnm,mhd->nhd", ds_HNM, k_MHD))
        rows_of(dk, kv_offsets, b).add_(torch.einsum("hnm,nhd->mhd", ds_HNM, q_NHD))
        rows_of(dv, kv_offsets, b).add_(torch.einsum("hnm,nhd->mhd", p_HNM, do_NHD))
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)
