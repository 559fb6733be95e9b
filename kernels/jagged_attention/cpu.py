"""Jagged attention in plain torch on blocks of padded examples: what a CPU trains with.

Of 16-bit inputs everything between reading and writing is float32: an error of a score is one of its exponential.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faceter.kernels.operands import Side, batch_size
from faceter.kernels.padded_blocks import Rows, blocks
from faceter.kernels.reference_parts import in_window, wide

_INF = float("inf")


def jagged_attention_forward_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    bias: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    """As `op.jagged_attention_forward`."""
    q_side, kv_side = Side.of(q, q_offsets, max_q), Side.of(k, kv_offsets, max_kv)
    batch, heads = batch_size(q, k, q_offsets, kv_offsets), q.shape[-2]
    out_side = Side(q_offsets, q_side.rows, q_side.total, False)
    o = q.new_zeros(q.shape if q_offsets is not None else (batch, *q.shape[-3:]))
    lse = torch.full(o.shape[:-1], -_INF, dtype=torch.promote_types(q.dtype, torch.float32))
    for q_rows, kv_rows in blocks(q_side, kv_side, batch, heads, q.device):
        q_BHND, k_BHMD, v_BHMD = (
            wide(rows.gather(x, side))
            for x, rows, side in ((q, q_rows, q_side), (k, kv_rows, kv_side), (v, kv_rows, kv_side))
        )
        p_BHNM = _scores(q_BHND, k_BHMD, bias, q_rows, kv_rows, qk_scale, left, right)
        top_BHN1 = p_BHNM.amax(-1, keepdim=True)
        top_BHN1 = top_BHN1.masked_fill(top_BHN1 == -_INF, 0.0)  # of a row that sees no key
        p_BHNM.sub_(top_BHN1).exp_()
        total_BHN1 = p_BHNM.sum(-1, keepdim=True)
        factor_BHN1 = out_scale / total_BHN1.masked_fill(total_BHN1 == 0, 1.0)
        q_rows.scatter(torch.matmul(p_BHNM, v_BHMD) * factor_BHN1, o, out_side)
        q_rows.scatter(top_BHN1 + total_BHN1.log(), lse[..., None], out_side)
    return o, lse


def jagged_attention_backward_cpu(
    grad: Tensor,
    grad_lse: Tensor | None,
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    bias: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
    dq_wanted: bool,
    dkv_wanted: bool,
    dbias_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `op.jagged_attention_backward`."""
    q_side, kv_side = Side.of(q, q_offsets, max_q), Side.of(k, kv_offsets, max_kv)
    out_side = Side(q_offsets, q_side.rows, q_side.total, False)
    # A shared side adds up over the batch, and so may a bias: not in 16 bits.
    dq, dk, dv = (
        torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32) if side.shared else x.dtype)
        for x, side in ((q, q_side), (k, kv_side), (v, kv_side))
    )
    dbias = torch.zeros(bias.shape, dtype=lse.dtype) if dbias_wanted else None
    for q_rows, kv_rows in blocks(q_side, kv_side, batch_size(q, k, q_offsets, kv_offsets), q.shape[-2], q.device):
        q_BHND, do_BHND, o_BHND, k_BHMD, v_BHMD = (
            wide(rows.gather(x, side))
            for x, rows, side in (
                (q, q_rows, q_side),
                (grad, q_rows, out_side),
                (o, q_rows, out_side),
                (k, kv_rows, kv_side),
                (v, kv_rows, kv_side),
            )
        )
        lse_BHN1 = q_rows.gather(lse[..., None], out_side)
        delta_BHN1 = (o_BHND * do_BHND).sum(-1, keepdim=True)
        if grad_lse is not None:
            delta_BHN1 -= q_rows.gather(grad_lse[..., None], out_side)
        # Rows of padding and rows that see no key.
        blind_BHN1 = (lse_BHN1 == -_INF) | ~q_rows.valid[:, None, :, None]
        lse_BHN1, delta_BHN1 = lse_BHN1.masked_fill(blind_BHN1, _INF), delta_BHN1.masked_fill(blind_BHN1, 0.0)
        p_BHNM = _scores(q_BHND, k_BHMD, bias, q_rows, kv_rows, qk_scale, left, right).sub_(lse_BHN1).exp_()
        if dkv_wanted:
            kv_rows.scatter(torch.matmul(p_BHNM.mT, do_BHND) * out_scale, dv, kv_side)
        ds_BHNM = torch.matmul(do_BHND, v_BHMD.mT).mul_(out_scale).sub_(delta_BHN1).mul_(p_BHNM)
        if dq_wanted:
            q_rows.scatter(torch.matmul(ds_BHNM, k_BHMD) * qk_scale, dq, q_side)
        if dkv_wanted:
            kv_rows.scatter(torch.matmul(ds_BHNM.mT, q_BHND) * qk_scale, dk, kv_side)
        if dbias is not None:
            _add_to_bias(ds_BHNM, dbias, q_rows)
    nothing = q.new_empty
    return (
        dq.to(q.dtype) if dq_wanted else nothing(0),
        dk.to(k.dtype) if dkv_wanted else nothing(0),
        dv.to(v.dtype) if dkv_wanted else nothing(0),
        dbias.to(bias.dtype) if dbias_wanted else nothing(0),
    )


def _scores(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    bias: Tensor | None,
    q_rows: Rows,
    kv_rows: Rows,
    qk_scale: float,
    left: int,
    right: int,
) -> Tensor:
    """(b, H, n, m), -inf where a row does not see a key."""
    s_BHNM = torch.matmul(q_BHND * qk_scale, k_BHMD.mT)
    n, m = s_BHNM.shape[-2:]
    if bias is not None:
        s_BHNM += (bias if bias.shape[0] == 1 else bias[q_rows.examples])[..., :n, :m]
        if not q_rows.valid.all():  # what the bias holds there may be NaN
            s_BHNM.masked_fill_(~q_rows.valid[:, None, :, None], 0.0)
    if not kv_rows.valid.all():
        s_BHNM.masked_fill_(~kv_rows.valid[:, None, None], -_INF)
    if left >= 0 or right >= 0:
        s_BHNM.masked_fill_(~in_window(n, m, left, right, s_BHNM.device), -_INF)
    return s_BHNM


def _add_to_bias(ds_BHNM: Tensor, dbias: Tensor, q_rows: Rows) -> None:
    n, m = ds_BHNM.shape[-2:]
    if dbias.shape[1] == 1:
        ds_BHNM = ds_BHNM.sum(1, keepdim=True)
    if dbias.shape[0] == 1:
        dbias[..., :n, :m] += ds_BHNM.sum(0, keepdim=True)
    else:
        dbias[q_rows.examples, :, :n, :m] = ds_BHNM
