"""Self-attention of one feature group: over the whole history, in a sliding window, or in blocks of 64 rows.

O = softmax(Q K^T / sqrt(D) + mask) V per head, Q, K, V = S W_q, S W_k, S W_v (arXiv 1706.03762).
Sliding window: Kunlun, arXiv 2602.10016. Blocks of 64: Meta Engineering, "Training GEM at LLM scale".
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faceter.model.rotary import position_angles, rotate, time_angles

BLOCK = 64


def masked_attention(q_BMHD: Tensor, k_BNHD: Tensor, v_BNHD: Tensor, allowed: Tensor) -> Tensor:
    """softmax over the allowed keys of Q K^T / sqrt(D), times V.

    Args:
        q_BMHD: (B, M, H, D) queries.
        k_BNHD, v_BNHD: (B, N, H, D) keys and values.
        allowed: bool, broadcast to (B, H, M, N), True = attend.

    Returns:
        (B, M, H, D); zeros for a query without an allowed key.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BMHD, k_BNHD, v_BNHD))
    # A row of the mask without any key is 0 / 0: torch's own kernels give zeros, cuDNN's gives garbage and NaN
    # gradients. So such a query attends to all keys, and then its output is dropped.
    has_key = allowed.any(-1, keepdim=True)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | ~has_key)
    return o.masked_fill(~has_key, 0).transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head self-attention (B, N, E) -> (B, N, E); rows past the length come out as zeros. No norm, no residual.

    Args:
        dim: E.
        heads: H, divides E.
        kind: "full": every key; "window": keys [t - window, t + window]; "block": keys of the query's own block, rows
            [64 i, 64 i + 63].
        window: half width of the window, in rows.
        causal: of those, only keys up to the query's own row.
        position: rotary embedding by position ("rope"), by time ("rote"), by position for the first half of each
            head's pairs and by time for the second ("both"), or none.
        time_scale: t_scale of the rotary embedding by time, seconds.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kind: Literal["full", "window", "block"] = "full",
        window: int = 50,
        causal: bool = False,
        position: Literal["none", "rope", "rote", "both"] = "none",
        time_scale: float = 3600.0,
    ):
        super().__init__()
        self.dim, self.heads, self.head_dim = dim, heads, dim // heads
        self.kind, self.window, self.causal = kind, window, causal
        self.position, self.time_scale = position, time_scale
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, s_BNE: Tensor, mask_BN: Tensor, delta_BN: Tensor | None = None) -> Tensor:
        """
        Args:
            s_BNE: (B, N, E), an example's rows first, then padding.
            mask_BN: (B, N) bool, True = valid.
            delta_BN: (B, N) seconds from the event to the request, >= 0; read for "rote" and "both" only.

        Raises:
            ValueError: no delta_BN where it is read.
        """
        qkv = self.qkv(s_BNE).unflatten(-1, (3 * self.heads, self.head_dim))
        qk, v_BNHD = qkv.split([2 * self.heads, self.heads], dim=2)
        if self.position != "none":
            qk = rotate(qk, self._angles(s_BNE, delta_BN))
        q_BNHD, k_BNHD = qk.chunk(2, dim=2)
        if self.kind == "block":
            o_BNHD = self._attend_in_blocks(q_BNHD, k_BNHD, v_BNHD, mask_BN)
        else:
            o_BNHD = masked_attention(q_BNHD, k_BNHD, v_BNHD, self._allowed(mask_BN))
        return self.out(o_BNHD.flatten(2)).masked_fill(~mask_BN[..., None], 0)

    def _angles(self, s_BNE: Tensor, delta_BN: Tensor | None) -> Tensor:
        pairs, rows = self.head_dim // 2, s_BNE.shape[1]
        dtype = torch.promote_types(s_BNE.dtype, torch.float32)
        if self.position == "rope":
            return position_angles(rows, pairs, s_BNE.device, dtype)
        if delta_BN is None:
            raise ValueError(f"position {self.position!r} needs delta_BN, the events' times before the request")
        if self.position == "rote":
            return time_angles(delta_BN, pairs, self.time_scale)
        by_position = position_angles(rows, pairs // 2, s_BNE.device, dtype).expand(s_BNE.shape[0], -1, -1)
        return torch.cat([by_position, time_angles(delta_BN, pairs - pairs // 2, self.time_scale)], dim=-1)

    def _allowed(self, mask_BN: Tensor) -> Tensor:
        """(B, 1, 1 or N, N): which keys each query may attend to, padding apart from position."""
        allowed = mask_BN[:, None, None]
        rows = mask_BN.shape[1]
        ahead_NN = torch.arange(rows, device=mask_BN.device) - torch.arange(rows, device=mask_BN.device)[:, None]
        if self.kind == "window":
            allowed = allowed & (ahead_NN.abs() <= self.window)
        return allowed & (ahead_NN <= 0) if self.causal else allowed

    def _attend_in_blocks(self, q_BNHD: Tensor, k_BNHD: Tensor, v_BNHD: Tensor, mask_BN: Tensor) -> Tensor:
        """Each block of 64 rows as an example of its own."""
        batch, rows = q_BNHD.shape[:2]
        blocks = (rows + BLOCK - 1) // BLOCK
        fill = blocks * BLOCK - rows
        block = (batch * blocks, BLOCK, self.heads, self.head_dim)
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, fill)).reshape(block) for x in (q_BNHD, k_BNHD, v_BNHD))
        o = masked_attention(q, k, v, self._allowed(F.pad(mask_BN, (0, fill)).view(block[:2])))
        return o.reshape(batch, blocks * BLOCK, self.heads, self.head_dim)[:, :rows]

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Parts "attention" (Q K^T and P V on the query-key pairs inside window or block) and "attention_projection".

        Args:
            lengths_B: (B,) valid rows per example.
        """
        n = lengths_B.double()
        if self.kind == "block":
            rest = n % BLOCK
            pairs = (n - rest) // BLOCK * self._pairs(n.new_tensor(BLOCK)) + self._pairs(rest)
        else:
            pairs = self._pairs(n)
        return {"attention": 4 * pairs * self.dim, "attention_projection": 8 * n * self.dim**2}

    def _pairs(self, n: Tensor) -> Tensor:
        """Query-key pairs of n rows that see each other up to the window."""
        reach = (n - 1).clamp(min=0)
        if self.kind == "window":
            reach = reach.clamp(max=self.window)
        one_side = n * reach - reach * (reach + 1) / 2
        return n + (one_side if self.causal else 2 * one_side)
