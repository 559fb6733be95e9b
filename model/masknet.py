"""MaskNet: one sequence out of several aligned ones (InterFormer, arXiv 2411.09852, preprocessing)."""

from __future__ import annotations

from torch import Tensor, nn

from faceter.model.flops import as_part
from faceter.model.mlp import MLP


class MaskNet(nn.Module):
    """S = MLP_lce(S_cat * MLP_mask(S_cat)): (..., in_dim) -> (..., out_dim).

    S_cat holds k aligned sequences side by side on the embedding axis. The block works on each event alone, so jagged
    values (T, in_dim) need no padding before it.

    The last bias of MLP_mask starts at 1: at first every input passes.

    Args:
        in_dim: k times the embedding width, plus whatever else an event has.
        out_dim: width E of the event's tokens.
        hidden: widths of the hidden layers of both MLPs.
        dropout: rate inside both MLPs.
    """

    def __init__(self, in_dim: int, out_dim: int, hidden: tuple[int, ...] = (), dropout: float = 0.0):
        super().__init__()
        self.mask = MLP(in_dim, hidden, in_dim, dropout)
        self.lce = MLP(in_dim, hidden, out_dim, dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.mask.layers[-1].bias)

    def forward(self, s_cat: Tensor) -> Tensor:
        return self.lce(s_cat * self.mask(s_cat))

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Part "masknet"; lengths_B: (B,) events per example."""
        return as_part("masknet", self.mask.flops(lengths_B), self.lce.flops(lengths_B))
