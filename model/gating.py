"""Gating of summary tokens (InterFormer, arXiv 2411.09852, cross arch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.mlp import MLP


class Gating(nn.Module):
    """Gating(x) = sigmoid(x * MLP(x)), elementwise product: (..., dim) -> (..., dim), values in (0, 1).

    The MLP's last bias starts at 1, so that at first Gating(x) is near sigmoid(x): with the usual bias of 0 it would
    start near the constant 1/2, and a summary would carry nothing.

    Args:
        dim: width of the tokens.
        hidden: widths of the MLP's hidden layers.
        dropout: rate inside the MLP.
    """

    def __init__(self, dim: int, hidden: tuple[int, ...] = (), dropout: float = 0.0):
        super().__init__()
        self.mlp = MLP(dim, hidden, dim, dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.mlp.layers[-1].bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x * self.mlp(x))

    def flops(self, rows_B: Tensor) -> dict[str, Tensor]:
        """Part "gating"; rows_B: (B,) tokens per example."""
        return {"gating": self.mlp.flops(rows_B)["mlp"]}
