"""The definition of GDPA: a loop over examples, in any dtype, differentiable by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from faceter.kernels.activations import ACTIVATIONS, names_of_heads
from faceter.kernels.operands import batch_size
from faceter.kernels.reference_parts import in_window, rows_of, rows_of_output, wide


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
            out_scale * rows_of_output(grad, q_offsets, b),
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
