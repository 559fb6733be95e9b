"""Hierarchical seed pooling (HSP; Kunlun, arXiv 2602.10016): seeds read the sequence, fewer tokens read the seeds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.flops import merge
from faceter.model.kron import SumKronLinear
from faceter.model.pooling import QueryAttention


class SeedPooling(nn.Module):
    """H = MHA(Norm(E), S, S), Y = sum_i Z_i^T H W_i: (B, N, E) -> (B, tokens, E).

    Args:
        dim: E.
        heads: H, divides E.
        seeds: n_seeds, rows of the learnable E.
        tokens: n_tokens of Y.
        kron_terms: terms of the SumKronLinear.
    """

    def __init__(self, dim: int, heads: int, seeds: int, tokens: int, kron_terms: int):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(seeds, dim))
        self.norm = nn.LayerNorm(dim, bias=False)
        self.attention = QueryAttention(dim, heads)
        self.kron = SumKronLinear(seeds, tokens, dim, dim, kron_terms)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.seeds)

    def forward(self, s_BNE: Tensor, mask_BN: Tensor) -> Tensor:
        """
        Args:
            s_BNE: (B, N, E).
            mask_BN: (B, N) bool, True = valid; an example without any gives zeros.
        """
        return self.kron(self.attention(self.norm(self.seeds), s_BNE, mask_BN))

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Parts of `QueryAttention.flops` and "kron"; lengths_B: (B,) valid rows per example."""
        return merge(self.attention.flops(lengths_B, self.seeds.shape[0]), self.kron.flops(lengths_B))
