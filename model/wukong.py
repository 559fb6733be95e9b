"""Wukong (arXiv 2403.02545, section 3): stacked factorisation machines over tokens.

With X (n tokens x E) of an example, layer by layer:

    X' = LN(concat(FMB(X), LCB(X)) + R X)
    FMB(X) = reshape(MLP(LN(flatten(FM(X)))))       factorisation machine block, n_F tokens
    LCB(X) = W X,  W (n_L x n)                      linear compression block, n_L tokens
    FM(X) = X X^T, or at low rank X (X^T Y),  Y (n x k)

R is the identity where the number of tokens stays, else a learned (n_F + n_L) x n projection.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.flops import as_part
from faceter.model.mlp import MLP


def fm(x_BNE: Tensor) -> Tensor:
    """All pairwise dot products, X X^T: (B, n, E) -> (B, n, n)."""
    return x_BNE @ x_BNE.mT


def fm_low_rank(x_BNE: Tensor, y_NK: Tensor) -> Tensor:
    """(X X^T) Y without the n x n matrix, as X (X^T Y): (B, n, E), (n, k) -> (B, n, k)."""
    return x_BNE @ (x_BNE.mT @ y_NK)


class FactorizationMachineBlock(nn.Module):
    """FMB: `in_tokens` -> `out_tokens`.

    Args:
        in_tokens: n.
        out_tokens: n_F.
        dim: E.
        rank: k of the low-rank form; 0 for X X^T itself.
        hidden: widths of the MLP.
        dropout: on its hidden layers.
    """

    def __init__(
        self, in_tokens: int, out_tokens: int, dim: int, rank: int, hidden: tuple[int, ...], dropout: float = 0.0
    ):
        super().__init__()
        self.in_tokens, self.out_tokens, self.dim, self.rank = in_tokens, out_tokens, dim, rank
        self.y_NK = nn.Parameter(torch.randn(in_tokens, rank) / in_tokens**0.5) if rank else None
        products = in_tokens * (rank or in_tokens)
        self.norm = nn.LayerNorm(products)
        self.mlp = MLP(products, hidden, out_tokens * dim, dropout=dropout)

    def forward(self, x_BNE: Tensor) -> Tensor:
        """(B, n, E) -> (B, n_F, E)."""
        products = fm(x_BNE) if self.y_NK is None else fm_low_rank(x_BNE, self.y_NK)
        return self.mlp(self.norm(products.flatten(1))).unflatten(-1, (self.out_tokens, self.dim))

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        per_row = 2 * self.in_tokens * self.dim * (2 * self.rank or self.in_tokens)
        return as_part("wukong", {"fm": lengths_B.double() * per_row}, self.mlp.flops(lengths_B))


class LinearCompressionBlock(nn.Module):
    """LCB: W X, `in_tokens` -> `out_tokens` of the same width."""

    def __init__(self, in_tokens: int, out_tokens: int):
        super().__init__()
        self.w_MN = nn.Parameter(torch.randn(out_tokens, in_tokens) / in_tokens**0.5)  # keeps the tokens' scale

    def forward(self, x_BNE: Tensor) -> Tensor:
        """(B, n, E) -> (B, n_L, E)."""
        return self.w_MN @ x_BNE

    def flops(self, lengths_B: Tensor, dim: int) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones; `dim`: E."""
        return {"wukong": lengths_B.double() * (2 * self.w_MN.numel() * dim)}


class WukongLayer(nn.Module):
    """One layer: X' = LN(concat(FMB(X), LCB(X)) + R X).

    Args:
        in_tokens: n.
        out_tokens: n_F + n_L.
        dim: E.
        fmb_tokens: n_F, at least 1 and less than out_tokens.
        rank: k of the FM; 0 for the exact one.
        hidden: widths of the FMB's MLP.
        dropout: on its hidden layers.
    """

    def __init__(
        self,
        in_tokens: int,
        out_tokens: int,
        dim: int,
        fmb_tokens: int,
        rank: int,
        hidden: tuple[int, ...],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.dim = dim
        self.fmb = FactorizationMachineBlock(in_tokens, fmb_tokens, dim, rank, hidden, dropout)
        self.lcb = LinearCompressionBlock(in_tokens, out_tokens - fmb_tokens)
        self.residual = LinearCompressionBlock(in_tokens, out_tokens) if in_tokens != out_tokens else None
        self.norm = nn.LayerNorm(dim)

    def forward(self, x_BNE: Tensor) -> Tensor:
        """(B, n, E) -> (B, n_F + n_L, E)."""
        kept = x_BNE if self.residual is None else self.residual(x_BNE)
        return self.norm(torch.cat([self.fmb(x_BNE), self.lcb(x_BNE)], dim=1) + kept)

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        linear = [block.flops(lengths_B, self.dim) for block in (self.lcb, self.residual) if block is not None]
        return as_part("wukong", self.fmb.flops(lengths_B), *linear)


class WukongStack(nn.Module):
    """`layers` Wukong layers; the first goes from `in_tokens` to `out_tokens`, the others stay there.

    Args: see WukongLayer.
    """

    def __init__(
        self,
        in_tokens: int,
        out_tokens: int,
        dim: int,
        layers: int,
        fmb_tokens: int,
        rank: int,
        hidden: tuple[int, ...],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.layers = nn.ModuleList(
            WukongLayer(out_tokens if i else in_tokens, out_tokens, dim, fmb_tokens, rank, hidden, dropout)
            for i in range(layers)
        )

    def forward(self, x_BNE: Tensor) -> Tensor:
        """(B, in_tokens, E) -> (B, out_tokens, E)."""
        for layer in self.layers:
            x_BNE = layer(x_BNE)
        return x_BNE

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        return as_part("wukong", *(layer.flops(lengths_B) for layer in self.layers))
