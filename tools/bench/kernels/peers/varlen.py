"""torch.nn.attention.varlen: FlashAttention-2 on offsets. A block of block attention is a sequence of its own."""

from __future__ import annotations

from faceter.tools.bench.kernels.peers.run import Run, on_jagged
from faceter.tools.bench.kernels.problems import Problem, Rows


def varlen(problem: Problem) -> Run:
    """Seeds that the batch shares are copied for each example first, within the time."""
    from torch.nn.attention.varlen import varlen_attn  # not in every torch

    documents, q, kv = problem.documents, problem.documents.q, problem.documents.kv
    shared = q.form == "shared"
    if shared:
        q = Rows.of("jagged", q.lengths, q.most, problem.device)

    def forward(q_NHD, k_THD, v_THD):
        if shared:
            q_NHD = q_NHD.expand(documents.batch, -1, -1, -1).flatten(0, 1)
        # Its default scale, 1 / sqrt(D), is that of the problem.
        o = varlen_attn(q_NHD, k_THD, v_THD, q.offsets, kv.offsets, q.most, kv.most)
        return o.unflatten(0, (documents.batch, -1)) if shared else o

    return on_jagged(problem, forward)
