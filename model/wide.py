"""A shallow path to the logits: factorisation machine of a few ids, and a linear map of the dense features.

    y_t = a_t (sum_{i < j} <e_i, e_j> + sum_i w_i . e_i + v . x)

over the embeddings e_i of chosen id columns and the dense features x. It is DeepFM's FM component (arXiv 1703.04247;
FM: Rendle, ICDM 2010) with first-order weights that are read off the embeddings. With few data per id, and decayed
embeddings, this is matrix factorisation, which layers behind norms express badly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WideLogits(nn.Module):
    """The term above, to be added to the heads' logits.

    Args:
        columns: number of id columns, m.
        embedding_dim: their width D.
        in_features: number of dense features, n.
        tasks: number of tasks; they share the sum and scale it by a_t, 1 at first.
    """

    def __init__(self, columns: int, embedding_dim: int, in_features: int, tasks: int):
        super().__init__()
        self.weight_MD = nn.Parameter(torch.zeros(columns, embedding_dim))
        self.dense_weight_n = nn.Parameter(torch.zeros(in_features))
        self.scale_T = nn.Parameter(torch.ones(tasks))

    def forward(self, embeddings_BMD: Tensor, dense_Bn: Tensor) -> Tensor:
        """(B, m, D) and (B, n) -> (B, tasks) float32, under autocast too."""
        e_BMD = embeddings_BMD.float()
        # sum_{i < j} <e_i, e_j> = (|sum_i e_i|^2 - sum_i |e_i|^2) / 2
        pairs_B = (e_BMD.sum(1).square() - e_BMD.square().sum(1)).sum(1) / 2
        first_order_B = (e_BMD * self.weight_MD).sum((1, 2)) + (dense_Bn.float() * self.dense_weight_n).sum(1)
        return (pairs_B + first_order_B)[:, None] * self.scale_T
