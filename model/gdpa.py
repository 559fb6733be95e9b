"""Generalised dot-product attention (GDPA) and the personalised feed-forward network made of it (Kunlun).

Source: Kunlun, arXiv 2602.10016; InterFormer's PFFN(X_sum, S) = f(X_sum) S, arXiv 2411.09852.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faceter.model.activations import activation
from faceter.model.config import Activation


def gdpa(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    act: Callable[[Tensor], Tensor],
    qk_scale: float = 1.0,
    out_scale: float = 1.0,
) -> Tensor:
    """out_scale * act(qk_scale * Q K^T) V: summed over keys, not normalised, act elementwise.

    Args:
        q_BHND: (B, H, N, D).
        k_BHMD, v_BHMD: (B, H, M, D).
        act: elementwise activation.

    Returns:
        (B, H, N, D).
    """
    p_BHNM = act(torch.matmul(q_BHND, k_BHMD.transpose(-1, -2)) * qk_scale)
    return torch.matmul(p_BHNM, v_BHMD) * out_scale


class GdpaPffn(nn.Module):
    """GDPA-PFFN: O = S + sum over heads of Act_h(Q K^T / tau) V, Q = Norm(S), K = w1(X_sum), V = w2(X_sum).

    A feed-forward network on each row of S whose weights K, V (M rows each) are made from the example's own summary.
    Heads are slices of E, as in attention, and each adds to its slice. w1 and w2 are linear in all tokens of X_sum
    together; their biases are the part of the network that all examples share.

    tau is large (the maximum length) and M is not, so logits or branch would drown in 1 / tau. K and V therefore have a
    learned gain per feature; it starts at the value, which has tau in it, that gives both about unit variance.

    Args:
        dim: E.
        heads: H, divides E.
        tokens: M, rows of K and of V.
        summary_tokens: tokens of X_sum.
        summary_dim: width C of X_sum.
        tau: the maximum length.
        activations: names; head h has the one at h mod their number.
        scale_inside: Act(Q K^T / tau) V; off: Act(Q K^T) V / tau.
        qk_norm: each head's q and k are normalised to unit mean square before the gain, which bounds a logit by
            D * max|gain|.
        dropout: rate on the branch.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        tokens: int,
        summary_tokens: int,
        summary_dim: int,
        tau: float,
        activations: tuple[Activation, ...] = ("gelu",),
        scale_inside: bool = False,
        qk_norm: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.heads, self.head_dim, self.tokens = heads, dim // heads, tokens
        self.activations = [activation(name) for name in activations[:heads]]
        self.tau, self.scale_inside, self.qk_norm = tau, scale_inside, qk_norm
        self.norm = nn.LayerNorm(dim, bias=False)
        self.summary_norm = nn.LayerNorm(summary_dim)
        self.w1 = nn.Linear(summary_tokens * summary_dim, tokens * dim)
        self.w2 = nn.Linear(summary_tokens * summary_dim, tokens * dim)
        self.k_gain = nn.Parameter(torch.empty(heads, self.head_dim))
        self.v_gain = nn.Parameter(torch.empty(heads, self.head_dim))
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for w in (self.w1, self.w2):
            # Entries of K and V: half of their variance from the summary, half shared.
            nn.init.normal_(w.weight, std=(2 * w.in_features) ** -0.5)
            nn.init.normal_(w.bias, std=0.5**0.5)
        nn.init.constant_(self.k_gain, (self.tau if self.scale_inside else 1) * self.head_dim**-0.5)
        nn.init.constant_(self.v_gain, (1 if self.scale_inside else self.tau) * self.tokens**-0.5)

    def forward(self, s_BNE: Tensor, mask_BN: Tensor, x_sum_BMC: Tensor) -> Tensor:
        """
        Args:
            s_BNE: (B, N, E), rows past the length zero.
            mask_BN: (B, N) bool, True = valid.
            x_sum_BMC: (B, summary_tokens, summary_dim).

        Returns:
            (B, N, E), rows past the length zero.
        """
        heads = (self.heads, self.head_dim)
        x_sum = self.summary_norm(x_sum_BMC).flatten(1)
        q_BNHD = self.norm(s_BNE).unflatten(-1, heads)
        k_BMHD = self.w1(x_sum).unflatten(-1, (self.tokens, *heads))
        v_BMHD = self.w2(x_sum).unflatten(-1, (self.tokens, *heads)) * self.v_gain
        if self.qk_norm:
            q_BNHD, k_BMHD = (F.rms_norm(x, (self.head_dim,)) for x in (q_BNHD, k_BMHD))
        q, k, v = (x.transpose(1, 2) for x in (q_BNHD, k_BMHD * self.k_gain, v_BMHD))
        scales = (1 / self.tau, 1.0) if self.scale_inside else (1.0, 1 / self.tau)
        kinds = len(self.activations)
        # One GDPA per activation, on the heads that have it; head h is then number h // kinds of its activation's.
        outs = [
            gdpa(q[:, i::kinds], k[:, i::kinds], v[:, i::kinds], a, *scales) for i, a in enumerate(self.activations)
        ]
        o_BNHD = torch.stack([outs[h % kinds][:, h // kinds] for h in range(self.heads)], dim=2)
        return s_BNE + self.dropout(o_BNHD.flatten(2)).masked_fill(~mask_BN[..., None], 0)

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Parts "gdpa" (both matmuls) and "gdpa_weights" (w1 and w2).

        Args:
            lengths_B: (B,) valid rows per example.
        """
        dim = self.heads * self.head_dim
        weights = 4 * self.w1.in_features * self.w1.out_features
        return {
            "gdpa": 4 * lengths_B.double() * self.tokens * dim,
            "gdpa_weights": lengths_B.new_full(lengths_B.shape, weights, dtype=torch.float64),
        }
