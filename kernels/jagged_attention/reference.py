"""The definition of jagged attention: a loop over examples, in any dtype, differentiable by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from faceter.kernels.operands import batch_size
from faceter.kernels.reference_parts import in_window, rows_of, rows_of_output, wide


def jagged_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    bias: Tensor | None,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    """(o, lse): out_scale * softmax(s) v and log sum exp s, s = qk_scale * q k^T + bias, for each example and head.

    Arguments as in `op.jagged_attention_forward`. A row that sees no key has o = 0 and lse = -inf.
    """
    batch = batch_size(q, k, q_offsets, kv_offsets)
    parts = []
    for b in range(batch):
        q_NHD, k_MHD, v_MHD = (rows_of(x, o, b) for x, o in ((q, q_offsets), (k, kv_offsets), (v, kv_offsets)))
        p_HNM, lse_HN = probabilities(q_NHD, k_MHD, bias_of(bias, b), qk_scale, left, right)
        parts.append((out_scale * torch.einsum("hnm,mhd->nhd", p_HNM, v_MHD), lse_HN.mT))
    if q_offsets is not None:  # the rows past the last example
        rest = q[sum(len(o) for o, _ in parts) :]
        parts.append((torch.zeros_like(rest), rest.new_full(rest.shape[:-1], float("-inf"))))
        return tuple(torch.cat(x) for x in zip(*parts, strict=True))
    if batch == 0:
        return q.new_zeros((0, *q.shape[-3:])), q.new_zeros((0, *q.shape[-3:-1]))
    return tuple(torch.stack(x) for x in zip(*parts, strict=True))


def probabilities(
    q_NHD: Tensor, k_MHD: Tensor, bias_HNM: Tensor | None, qk_scale: float, left: int, right: int
) -> tuple[Tensor, Tensor]:
    """(H, N, M) softmax of an example's scores, and (H, N) log sum exp of them."""
    s_HNM = qk_scale * torch.einsum("nhd,mhd->hnm", q_NHD, k_MHD)
    if bias_HNM is not None:
        s_HNM = s_HNM + bias_HNM[:, : len(q_NHD), : len(k_MHD)]
    seen = in_window(len(q_NHD), len(k_MHD), left, right, q_NHD.device) & (s_HNM != float("-inf"))
    blind_HN1 = ~seen.any(-1, keepdim=True)
    # Of a row that sees nothing those of zeros, so that no derivative is the difference of two infinities.
    s_HNM = s_HNM.masked_fill(~seen, float("-inf")).masked_fill(blind_HN1, 0.0)
    p_HNM = torch.softmax(s_HNM, -1).masked_fill(~seen, 0.0)
    return p_HNM, torch.logsumexp(s_HNM, -1).masked_fill(blind_HN1.squeeze(-1), float("-inf"))


def bias_of(bias: Tensor | None, b: int) -> Tensor | None:
    """(H or 1, max_q, max_kv): that of example b."""
    return None if bias is None else bias[b if bias.shape[0] > 1 else 0]


def jagged_attention_forward_reference(
    q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv, *options
) -> tuple[Tensor, Tensor]:
    """As `op.jagged_attention_forward`; 16-bit inputs are computed with in float32."""
    bias = None if bias is None else bias.to(wide(q).dtype)
    o, lse = jagged_attention_reference(wide(q), wide(k), wide(v), q_offsets, kv_offsets, bias, *options)
    return o.to(q.dtype), lse


def jagged_attention_backward_reference(
    grad, grad_lse, o, lse, q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv, qk_scale,
    out_scale, left, right, dq_wanted, dkv_wanted, dbias_wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `op.jagged_attention_backward`, written out: inside an operator there is no autograd."""
    dtype, (grad, q, k, v) = q.dtype, map(wide, (grad, q, k, v))
    wide_bias = None if bias is None else bias.to(q.dtype)
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=q.dtype, device=q.device)
    for b in range(batch_size(q, k, q_offsets, kv_offsets)):
        q_NHD, k_MHD, v_MHD = (rows_of(x, o, b) for x, o in ((q, q_offsets), (k, kv_offsets), (v, kv_offsets)))
        do_NHD = out_scale * rows_of_output(grad, q_offsets, b)
        p_HNM, lse_HN = probabilities(q_NHD, k_MHD, bias_of(wide_bias, b), qk_scale, left, right)
        dp_HNM = torch.einsum("nhd,mhd->hnm", do_NHD, v_MHD)
        ds_HNM = dp_HNM - (p_HNM * dp_HNM).sum(-1, keepdim=True)
        if grad_lse is not None:
            ds_HNM = ds_HNM + rows_of_output(grad_lse, q_offsets, b).mT[..., None]
        ds_HNM = (p_HNM * ds_HNM).masked_fill((lse_HN == float("-inf"))[..., None], 0.0)
        rows_of(dq, q_offsets, b).add_(qk_scale * torch.einsum("hnm,mhd->nhd", ds_HNM, k_MHD))
        rows_of(dk, kv_offsets, b).add_(qk_scale * torch.einsum("hnm,nhd->mhd", ds_HNM, q_NHD))
        rows_of(dv, kv_offsets, b).add_(torch.einsum("hnm,nhd->mhd", p_HNM, do_NHD))
        if dbias is not None:
            part = bias_of(dbias, b)[:, : len(q_NHD), : len(k_MHD)]
            part.add_(ds_HNM.sum(0, keepdim=True) if len(part) == 1 else ds_HNM)
    return (
        dq.to(dtype) if dq_wanted else q.new_empty(0, dtype=dtype),
        dk.to(dtype) if dkv_wanted else q.new_empty(0, dtype=dtype),
        dv.to(dtype) if dkv_wanted else q.new_empty(0, dtype=dtype),
        dbias.to(bias.dtype) if dbias_wanted else q.new_empty(0, dtype=dtype),
    )
