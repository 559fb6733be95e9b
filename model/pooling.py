"""Pooling of a sequence by attention from queries that do not depend on it (PMA, arXiv 1810.00825)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.attention import masked_attention


class QueryAttention(nn.Module):
    """MHA(Q, S, S) with the same queries for every example: (n, E), (B, N, E) -> (B, n, E).

    Keys, values and output are projected, queries are not: they are parameters themselves.

    Args:
        dim: E.
        heads: H, divides E.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.dim, self.heads, self.head_dim = dim, heads, dim // heads
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, q_ME: Tensor, s_BNE: Tensor, mask_BN: Tensor) -> Tensor:
        """
        Args:
            q_ME: (n, E) queries.
            s_BNE: (B, N, E).
            mask_BN: (B, N) bool, True = valid; an example without any gives zeros.
        """
        k_BNHD, v_BNHD = self.kv(s_BNE).unflatten(-1, (2, self.heads, self.head_dim)).unbind(2)
        q_BMHD = q_ME.to(k_BNHD.dtype).unflatten(-1, (self.heads, self.head_dim)).expand(s_BNE.shape[0], -1, -1, -1)
        return self.out(masked_attention(q_BMHD, k_BNHD, v_BNHD, mask_BN[:, None, None]).flatten(2))

    def flops(self, lengths_B: Tensor, queries: int) -> dict[str, Tensor]:
        """Parts "pooling" (Q K^T and P V) and "pooling_projection"; lengths_B: (B,) valid rows per example."""
        n = lengths_B.double()
        return {
            "pooling": 4 * queries * n * self.dim,
            "pooling_projection": (4 * n + 2 * queries) * self.dim**2,
        }


class PMA(nn.Module):
    """Pooling by multi-head attention with learnable queries Q: MHA(Q, S, S), (B, N, E) -> (B, queries, E).

    Args:
        dim: E.
        heads: H, divides E.
        queries: number of queries.
    """

    def __init__(self, dim: int, heads: int, queries: int):
        super().__init__()
        self.queries = nn.Parameter(torch.empty(queries, dim))
        self.attention = QueryAttention(dim, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.queries)

    def forward(self, s_BNE: Tensor, mask_BN: Tensor) -> Tensor:
        """As `QueryAttention.forward`."""
        return self.attention(self.queries, s_BNE, mask_BN)

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """As `QueryAttention.flops`."""
        return self.attention.flops(lengths_B, self.queries.shape[0])
