"""Multi-domain, multi-task heads: one logit per task, with parameters of the row's domain.

For task t and domain d, from the shared representation r:

    h_t = GELU(MLP_t(r)),   logit_t = w_t . ((1 + gamma_td) * h_t + beta_td) + b_t + c_td

MLP_t, w_t and b_t serve all domains; gamma, beta and c are the domain's own and start at zero, so that a rare domain
begins as the average one. (Several domains with their own outputs: GEM, Meta Engineering 2025; a shared and a
domain-specific factor per weight: STAR, arXiv 2101.11427.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.flops import as_part
from faceter.model.mlp import MLP


class MultiTaskHeads(nn.Module):
    """One head per task.

    Args:
        in_dim: width R of the representation.
        hidden: widths of each task's MLP; empty for a linear head.
        tasks: number of tasks.
        domains: number of domains; with one there are no domain parameters.
        dropout: on the MLP's hidden layers and on h.
    """

    def __init__(self, in_dim: int, hidden: tuple[int, ...], tasks: int, domains: int = 1, dropout: float = 0.0):
        super().__init__()
        width = hidden[-1] if hidden else in_dim
        self.mlps = nn.ModuleList(
            MLP(in_dim, hidden[:-1], width, dropout=dropout) for _ in range(tasks if hidden else 0)
        )
        self.act = nn.GELU()
        self.drop = nn.Dropout(dropout)
        self.weight_TE = nn.Parameter(torch.randn(tasks, width) / width**0.5)
        self.bias_T = nn.Parameter(torch.zeros(tasks))
        self.gamma_DTE = nn.Parameter(torch.zeros(domains, tasks, width)) if domains > 1 else None
        self.beta_DTE = nn.Parameter(torch.zeros(domains, tasks, width)) if domains > 1 else None
        self.bias_DT = nn.Parameter(torch.zeros(domains, tasks)) if domains > 1 else None

    def forward(self, representation_BR: Tensor, domains_B: Tensor) -> Tensor:
        """(B, R) and (B,) int64 domains -> (B, tasks) float32 logits, under autocast too."""
        if self.mlps:
            h_BTE = torch.stack([self.act(mlp(representation_BR)) for mlp in self.mlps], dim=1)
        else:
            h_BTE = representation_BR.unsqueeze(1)
        h_BTE = self.drop(h_BTE).float()
        if self.gamma_DTE is not None:
            h_BTE = (1 + self.gamma_DTE[domains_B]) * h_BTE + self.beta_DTE[domains_B]
        # A product and a sum, not a matmul: autocast leaves those in fp32.
        logits_BT = (h_BTE * self.weight_TE).sum(-1) + self.bias_T
        return logits_BT if self.bias_DT is None else logits_BT + self.bias_DT[domains_B]

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        return as_part("heads", *(mlp.flops(lengths_B) for mlp in self.mlps))
