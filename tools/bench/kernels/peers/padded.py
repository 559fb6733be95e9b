"""Padded peers: plain torch, torch.compile of it, and scaled_dot_product_attention. Padding itself is not timed.

All get contiguous (B, H, N, D): what suits them best. Those that write scores to memory compute only as many examples
as fit a budget; they do the same work for each example.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from faceter.tools.bench.kernels.peers.run import Run, Unavailable
from faceter.tools.bench.kernels.problems import Problem, Rows

# Of scores and what autograd keeps or makes beside them: six bf16 tensors of that shape.
_SCORE_BYTES, _SCORES_BUDGET = 12, 8 << 30


def eager(problem: Problem) -> Run:
    """Matmul, activation or softmax, matmul."""
    documents = problem.documents
    size = _SCORE_BYTES * problem.workload.heads * documents.q.most * documents.kv.most
    batch = max(1, min(documents.batch, _SCORES_BUDGET // size))
    function, scales = _gdpa if problem.workload.op == "gdpa" else _softmax, problem.scales
    return _run(documents, batch, lambda q, k, v, mask: function(q, k, v, mask, *scales))


def compiled(problem: Problem) -> Run:
    """`eager` under torch.compile, for these very shapes."""
    run = eager(problem)
    # Without a GPU only the way there is of interest, and a C++ compiler may be missing.
    backend = "inductor" if problem.device.type == "cuda" else "aot_eager"
    run.forward = torch.compile(run.forward, dynamic=False, fullgraph=True, backend=backend)
    return run


def sdpa_mask(problem: Problem) -> Run:
    """scaled_dot_product_attention with a mask of the keys; torch chooses the backend."""
    documents = problem.documents

    def function(q, k, v, mask):
        return F.scaled_dot_product_attention(*_expanded(q, k, v), attn_mask=mask, scale=problem.scales[0])

    return _run(documents, documents.batch, function)


def sdpa_cudnn(problem: Problem) -> Run:
    """Likewise with cuDNN and without a mask."""
    documents = problem.documents
    if int(documents.kv.lengths.min()) < documents.kv.most:
        raise Unavailable("without a mask it is right for equal lengths only")

    def function(q, k, v, mask):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*_expanded(q, k, v), scale=problem.scales[0])

    return _run(documents, documents.batch, function)


def _gdpa(q, k, v, mask, qk_scale: float, out_scale: float) -> Tensor:
    # No mask: gelu(0) = 0. Scaling rows is cheaper than scaling scores.
    return F.gelu((q * qk_scale) @ k.mT) @ v * out_scale


def _softmax(q, k, v, mask, qk_scale: float, out_scale: float) -> Tensor:
    s = (q * qk_scale) @ k.mT
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    return torch.softmax(s, -1) @ v


def _expanded(q, k, v):
    """q for each example, of seeds (H, N, D) that the batch shares."""
    return q.expand(k.shape[0], -1, -1, -1), k, v


def _run(documents: Problem, batch: int, function: Callable[..., Tensor]) -> Run:
    sides = {"q": documents.q, "k": documents.kv, "v": documents.kv, "o": documents.o}
    lengths = documents.kv.lengths[:batch]
    mask = None
    if documents.kv.form == "jagged" and int(lengths.min()) < documents.kv.most:
        # A document without keys sees one row of padding, zeros: its output is zero, and no gradient is NaN.
        mask = _valid(lengths.clamp(min=1), documents.kv.most, documents.device)[:, None, None, :]
    copies = [
        tuple(_pad(x.detach(), rows, batch) for x, rows in zip(copy, sides.values(), strict=True))
        for copy in documents.copies
    ]

    def restore(name: str, x: Tensor) -> Tensor:
        return _unpad(x, sides[name.removeprefix("d")], batch)

    return Run(
        forward=lambda q, k, v: function(q, k, v, mask),
        inputs=[tuple(x.requires_grad_() for x in copy[:3]) for copy in copies],
        grads=[copy[3] for copy in copies],
        batch=batch,
        scale=documents.batch / batch,
        restore=restore,
    )


def _valid(lengths: Tensor, most: int, device: torch.device) -> Tensor:
    """(B, N) bool: where rows are."""
    return torch.arange(most, device=device) < lengths.to(device)[:, None]


def _pad(x: Tensor, rows: Rows, batch: int) -> Tensor:
    """(B, H, N, D) of the first examples, zeros past their ends; (H, N, D) of a shared x."""
    x = rows.first(x, batch)
    if rows.form == "jagged":
        out = x.new_zeros((batch, rows.most, *x.shape[1:]))
        out[_valid(rows.lengths[:batch], rows.most, x.device)] = x
        x = out
    return x.transpose(-3, -2).contiguous()


def _unpad(x: Tensor, rows: Rows, batch: int) -> Tensor:
    x = x.transpose(-3, -2)
    return x[_valid(rows.lengths[:batch], rows.most, x.device)] if rows.form == "jagged" else x
