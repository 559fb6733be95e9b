"""FlexAttention over all rows as one sequence, with a mask that keeps documents apart. Making the mask is not timed.

GDPA has no softmax, but sum f(s) v = exp(lse) * (softmax(log f(s)) v) where f > 0 and lse is the log of the sum of f.
gelu is above -0.17: with f = gelu + SHIFT > 0, GDPA is that less SHIFT times the sum of v. So it is exact, in one pass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex_module

from faceter.tools.bench.kernels.peers.run import Run, Unavailable
from faceter.tools.bench.kernels.problems import ACTIVATION, Problem

SHIFT = 0.2
# The mask's table has a cell for each pair of 128-row blocks: so many rows fill the device, and the table stays small.
MOST_ROWS = 1 << 16


def flex(problem: Problem) -> Run:
    """Of as many documents as have MOST_ROWS rows."""
    documents, device, (qk_scale, out_scale) = problem.documents, problem.device, problem.scales
    gdpa = problem.workload.op == "gdpa"
    if gdpa and ACTIVATION != "gelu":
        raise Unavailable(f"no shift is known that makes {ACTIVATION} positive")
    rows = torch.maximum(documents.q.lengths.cumsum(0), documents.kv.lengths.cumsum(0))
    batch = max(1, int((rows <= MOST_ROWS).sum()))
    q_document, kv_document = (
        torch.repeat_interleave(torch.arange(batch), side.lengths[:batch]).to(device)
        for side in (documents.q, documents.kv)
    )
    compiled = device.type == "cuda"  # without a GPU it runs unfused, and forward only

    def mask_mod(b, h, i, j):
        return q_document[i] == kv_document[j]

    mask = flex_module.create_block_mask(
        mask_mod, None, None, len(q_document), len(kv_document), device=device, _compile=compiled
    )
    attention = log_score_gdpa if gdpa else softmax
    if compiled:
        attention = torch.compile(attention, dynamic=False)

    def forward(q, k, v):
        if documents.q.form == "shared":
            q = q.expand(batch, -1, -1, -1)
        options = (q_document, out_scale) if gdpa else ()
        o = attention(*(x.flatten(0, -3) for x in (q, k)), v, mask, qk_scale, *options)
        return o.unflatten(0, (batch, -1)) if documents.q.form == "shared" else o

    sides = (documents.q, documents.kv, documents.kv, documents.o)
    copies = [
        tuple(side.first(x.detach(), batch) for x, side in zip(copy, sides, strict=True)) for copy in documents.copies
    ]
    return Run(
        forward=forward,
        inputs=[tuple(x.requires_grad_() for x in copy[:3]) for copy in copies],
        grads=[copy[3] for copy in copies],
        batch=batch,
        scale=problem.flops() / problem.flops(batch),
        note="log-score" if gdpa else "",
        # Seen with torch 2.11 on an H200: dq and dk off by their own size, and not numbers.
        forward_only="its gradients through log scores are wrong" if gdpa and compiled else "",
    )


def _one_sequence(x_THD: Tensor) -> Tensor:
    return x_THD.transpose(0, 1)[None]


def softmax(q_THD: Tensor, k_THD: Tensor, v: Tensor, mask, qk_scale: float) -> Tensor:
    """(T, H, D); v is (T, H, D), or dense per example, like k before it was flattened."""
    q, k, v = (_one_sequence(x) for x in (q_THD, k_THD, v.flatten(0, -3)))
    return flex_module.flex_attention(q, k, v, block_mask=mask, scale=qk_scale)[0].transpose(0, 1)


def _log_shifted_gelu(score, b, h, i, j):
    return torch.log(0.5 * score * (1 + torch.erf(score * math.sqrt(0.5))) + SHIFT)


def log_score_gdpa(
    q_THD: Tensor, k_THD: Tensor, v_BMHD: Tensor, mask, qk_scale: float, q_document: Tensor, out_scale: float
) -> Tensor:
    """(T, H, D); v is dense per example."""
    q, k, v = (_one_sequence(x) for x in (q_THD, k_THD, v_BMHD.flatten(0, 1)))
    o, extra = flex_module.flex_attention(
        q, k, v, score_mod=_log_shifted_gelu, block_mask=mask, scale=qk_scale,
        return_aux=flex_module.AuxRequest(lse=True),
    )  # fmt: skip
    sums_HTD = v_BMHD.sum(1, dtype=torch.promote_types(v.dtype, torch.float32))[q_document].transpose(0, 1)
    out_HTD = out_scale * (extra.lse.exp()[..., None] * o - SHIFT * sums_HTD)[0]
    return out_HTD.transpose(0, 1).to(q.dtype)
