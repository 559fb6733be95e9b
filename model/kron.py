"""A linear map of a token matrix as a sum of Kronecker products (Kunlun, arXiv 2602.10016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SumKronLinear(nn.Module):
    """Y = sum_i Z_i^T H W_i: (B, in_tokens, in_dim) -> (B, out_tokens, out_dim), i = 1..terms.

    Z_i (in_tokens x out_tokens) mixes tokens, W_i (in_dim x out_dim) mixes features: terms * (n m + d e) parameters in
    place of the n m d e of a full linear map.

    Args:
        in_tokens, out_tokens: tokens before and after.
        in_dim, out_dim: their widths.
        terms: number of Kronecker products.
    """

    def __init__(self, in_tokens: int, out_tokens: int, in_dim: int, out_dim: int, terms: int):
        super().__init__()
        self.z = nn.Parameter(torch.empty(terms, in_tokens, out_tokens))
        self.w = nn.Parameter(torch.empty(terms, in_dim, out_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Y has about the variance of H's entries."""
        terms, in_tokens, _ = self.z.shape
        nn.init.normal_(self.z, std=in_tokens**-0.5)
        nn.init.normal_(self.w, std=(terms * self.w.shape[1]) ** -0.5)

    def forward(self, h_BNE: Tensor) -> Tensor:
        terms, in_tokens, out_tokens = self.z.shape
        # Z of all terms in one matmul, then W of all terms in another that sums over them as well.
        z_MN = self.z.permute(0, 2, 1).reshape(terms * out_tokens, in_tokens)
        mixed = torch.matmul(z_MN, h_BNE).unflatten(1, (terms, out_tokens))
        return mixed.transpose(1, 2).flatten(2) @ self.w.flatten(0, 1)

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Part "kron". The tokens are as many for every example: of `lengths_B` (B,) only the shape matters."""
        terms, in_tokens, out_tokens = self.z.shape
        _, in_dim, out_dim = self.w.shape
        flops = 2 * terms * out_tokens * in_dim * (in_tokens + out_dim)
        return {"kron": lengths_B.new_full(lengths_B.shape, flops, dtype=torch.float64)}
