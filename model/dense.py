"""Dense features become tokens: X_dense = reshape(MLP(x)), n numbers -> `tokens` x E.

Source: Wukong (arXiv 2403.02545, section 3.2): dense inputs go through an MLP into the embeddings' space.
"""

from __future__ import annotations

from torch import Tensor, nn

from faceter.model.flops import as_part
from faceter.model.mlp import MLP


class DenseTokens(nn.Module):
    """One MLP over all dense features.

    Args:
        in_features: n.
        hidden: widths of hidden layers.
        tokens: tokens that come out.
        dim: their width E.
        dropout: on hidden layers.
    """

    def __init__(self, in_features: int, hidden: tuple[int, ...], tokens: int, dim: int, dropout: float = 0.0):
        super().__init__()
        self.tokens = tokens
        self.dim = dim
        self.mlp = MLP(in_features, hidden, tokens * dim, dropout=dropout)

    def forward(self, dense_Bn: Tensor) -> Tensor:
        """(B, n) float -> (B, tokens, E)."""
        return self.mlp(dense_Bn).unflatten(-1, (self.tokens, self.dim))

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        return as_part("dense", self.mlp.flops(lengths_B))
