"""GDPA in plain torch on blocks of padded examples: what a CPU trains with.

Of 16-bit inputs everything between reading and writing is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faceter.kernels.activations import ACTIVATIONS, heads_by_activation
from faceter.kernels.operands import Side, batch_size
from faceter.kernels.padded_blocks import blocks
from faceter.kernels.reference_parts import in_window, wide


def gdpa_forward_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    activation: str,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
) -> Tensor:
    """As `op.gdpa_forward`."""
    q_side, kv_side = Side.of(q, q_offsets, max_q), Side.of(k, kv_offsets, max_kv)
    batch, heads = batch_size(q, k, q_offsets, kv_offsets), q.shape[-2]
    out_side = Side(q_offsets, q_side.rows, q_side.total, False)
    out = q.new_zeros(q.shape if q_offsets is not None else (batch, *q.shape[-3:]))
    for q_rows, kv_rows in blocks(q_side, kv_side, batch, heads, q.device):
        q_BHND = wide(q_rows.gather(q, q_side))
        k_BHMD, v_BHMD = (wide(kv_rows.gather(x, kv_side)) for x in (k, v))
        s_BHNM = torch.matmul(q_BHND, k_BHMD.mT) * qk_scale
        p_BHNM = _each_head(activation, s_BHNM, "function")
        if left >= 0 or right >= 0:
            p_BHNM = p_BHNM * in_window(*p_BHNM.shape[-2:], left, right, q.device)
        q_rows.scatter(torch.matmul(p_BHNM, v_BHMD) * out_scale, out, out_side)
    return out


def gdpa_backward_cpu(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    activation: str,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `op.gdpa_backward`."""
    q_side, kv_side = Side.of(q, q_offsets, max_q), Side.of(k, kv_offsets, max_kv)
    grad_side = Side(q_offsets, q_side.rows, q_side.total, False)
    # A shared side adds up over the batch: not in 16 bits.
    dq, dk, dv = (
        torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32) if side.shared else x.dtype)
        for x, side in ((q, q_side), (k, kv_side), (v, kv_side))
    )
    for q_rows, kv_rows in blocks(q_side, kv_side, batch_size(q, k, q_offsets, kv_offsets), q.shape[-2], q.device):
        q_BHND, do_BHND = (wide(q_rows.gather(x, side)) for x, side in ((q, q_side), (grad, grad_side)))
        k_BHMD, v_BHMD = (wide(kv_rows.gather(x, kv_side)) for x in (k, v))
        s_BHNM = torch.matmul(q_BHND, k_BHMD.mT) * qk_scale
        p_BHNM = _each_head(activation, s_BHNM, "function")
        ds_BHNM = _each_head(activation, s_BHNM, "derivative")
        ds_BHNM *= torch.matmul(do_BHND, v_BHMD.mT)
        if left >= 0 or right >= 0:
            seen = in_window(*p_BHNM.shape[-2:], left, right, q.device)
            p_BHNM, ds_BHNM = p_BHNM * seen, ds_BHNM * seen
        q_rows.scatter(torch.matmul(ds_BHNM, k_BHMD) * (qk_scale * out_scale), dq, q_side)
        kv_rows.scatter(torch.matmul(ds_BHNM.mT, q_BHND) * (qk_scale * out_scale), dk, kv_side)
        kv_rows.scatter(torch.matmul(p_BHNM.mT, do_BHND) * out_scale, dv, kv_side)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _each_head(activation: str, s_BHNM: Tensor, what: str) -> Tensor:
    groups = heads_by_activation(activation, s_BHNM.shape[1])
    if len(groups) == 1:
        return getattr(ACTIVATIONS[next(iter(groups))], what)(s_BHNM)
    out = torch.empty_like(s_BHNM)
    for name, chosen in groups.items():
        out[:, chosen] = getattr(ACTIVATIONS[name], what)(s_BHNM[:, chosen])
    return out
