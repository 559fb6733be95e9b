"""The sequence tower of one event type: its layers, and its summary for the rest of the model.

Sources: InterFormer, arXiv 2411.09852 (sequence arch, cross arch); Kunlun, arXiv 2602.10016 (GDPA-PFFN, HSP, CompSkip).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.attention import SelfAttention
from faceter.model.config import EventConfig
from faceter.model.flops import as_part, merge
from faceter.model.gating import Gating
from faceter.model.gdpa import GdpaPffn
from faceter.model.pooling import PMA
from faceter.model.seed_pooling import SeedPooling


class SequenceLayer(nn.Module):
    """S <- S + PFFN(X_sum, Norm(S)); S <- S + MHA(Norm(S)); summary <- HSP(Norm(S)): each its own pre-norm.

    CompSkip: a layer of even index skips self-attention, one of odd index skips PFFN and passes on the summary it is
    given. Without CompSkip every layer has all three.

    Args:
        event: the event type's configuration.
        index: number of the layer, from 0.
        summary_dim: width C of X_sum.
        max_length: tau of GDPA.
        dropout: rate on each branch.
        summary_tokens: tokens of X_sum.
    """

    def __init__(
        self, event: EventConfig, index: int, summary_dim: int, max_length: int, dropout: float, *, summary_tokens: int
    ):
        super().__init__()
        even, odd = index % 2 == 0, index % 2 == 1
        self.pffn = self.attention = self.pooling = None
        if even or not event.comp_skip:
            self.pffn = GdpaPffn(
                event.dim,
                event.heads,
                event.pffn_tokens,
                summary_tokens,
                summary_dim,
                tau=max_length,
                activations=event.activations,
                scale_inside=event.scale_inside,
                qk_norm=event.qk_norm,
                dropout=dropout,
            )
            self.pooling_norm = nn.LayerNorm(event.dim, bias=False)
            self.pooling = SeedPooling(event.dim, event.heads, event.seeds, event.tokens, event.kron_terms)
        if odd or not event.comp_skip:
            self.attention_norm = nn.LayerNorm(event.dim, bias=False)
            self.attention = SelfAttention(
                event.dim,
                event.heads,
                event.attention,
                event.window,
                event.causal,
                event.position,
                event.time_scale,
            )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        s_BNE: Tensor,
        mask_BN: Tensor,
        x_sum_BMC: Tensor,
        delta_BN: Tensor,
        summary_BKE: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            s_BNE: (B, N, E): CLS rows, then events, oldest first, then zeros.
            mask_BN: (B, N) bool, True = valid.
            x_sum_BMC: (B, summary_tokens, summary_dim).
            delta_BN: (B, N) seconds from the event to the request, >= 0.
            summary_BKE: (B, tokens, E) of the layer before; only a layer that skips pooling needs it.

        Returns:
            S (B, N, E), rows past the length zero, and the summary (B, tokens, E).

        Raises:
            ValueError: no summary for a layer that passes it on.
        """
        if self.pffn is not None:
            s_BNE = self.pffn(s_BNE, mask_BN, x_sum_BMC)
        if self.attention is not None:
            s_BNE = s_BNE + self.dropout(self.attention(self.attention_norm(s_BNE), mask_BN, delta_BN))
        if self.pooling is not None:
            summary_BKE = self.pooling(self.pooling_norm(s_BNE), mask_BN)
        if summary_BKE is None:
            raise ValueError("a layer of odd index with CompSkip needs the summary of the layer before it")
        return s_BNE, summary_BKE

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Parts of the blocks that the layer has; lengths_B: (B,) valid rows per example, CLS rows among them."""
        blocks = [block for block in (self.pffn, self.attention, self.pooling) if block is not None]
        return merge(*(block.flops(lengths_B) for block in blocks))


class SequenceSummary(nn.Module):
    """S_sum = Gating(Norm([CLS ‖ PMA(Norm(S)) ‖ most recent ‖ HSP]) W + b).

    What the feature interaction sees of the sequence.

    Args:
        event: the event type's configuration.
        num_cls: CLS rows that lead each sequence.
        pma_tokens: queries of the pooling by attention; 0 for none.
        recent_tokens: newest events, newest first, zeros in the place of those that are missing; 0 for none.
        out_dim: width of the summary's tokens.
    """

    def __init__(self, event: EventConfig, num_cls: int, pma_tokens: int, recent_tokens: int, out_dim: int):
        super().__init__()
        self.num_cls, self.recent_tokens = num_cls, recent_tokens
        self.num_tokens = num_cls + pma_tokens + recent_tokens + event.tokens
        self.pma = None
        if pma_tokens:
            self.pma_norm = nn.LayerNorm(event.dim, bias=False)
            self.pma = PMA(event.dim, event.heads, pma_tokens)
        self.token_norm = nn.LayerNorm(event.dim, bias=False)
        self.project = nn.Linear(event.dim, out_dim)
        self.gating = Gating(out_dim)

    def forward(self, s_BNE: Tensor, mask_BN: Tensor, summary_BKE: Tensor) -> Tensor:
        """
        Args:
            s_BNE: (B, N, E): CLS rows, then events, oldest first, then padding.
            mask_BN: (B, N) bool, True = valid.
            summary_BKE: (B, tokens, E), the last HSP.

        Returns:
            (B, num_cls + pma_tokens + recent_tokens + tokens, out_dim).
        """
        tokens = [s_BNE[:, : self.num_cls], self._recent(s_BNE, mask_BN), summary_BKE]
        if self.pma is not None:
            tokens.insert(1, self.pma(self.pma_norm(s_BNE), mask_BN))
        return self.gating(self.project(self.token_norm(torch.cat(tokens, dim=1))))

    def _recent(self, s_BNE: Tensor, mask_BN: Tensor) -> Tensor:
        """(B, recent_tokens, E)"""
        back = torch.arange(1, self.recent_tokens + 1, device=s_BNE.device)
        row_BR = mask_BN.sum(1, keepdim=True) - back
        index = row_BR.clamp(min=0)[..., None].expand(-1, -1, s_BNE.shape[2])
        return s_BNE.gather(1, index).masked_fill((row_BR < self.num_cls)[..., None], 0)

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """Parts of PMA and "summary"; lengths_B: (B,) valid rows per example, CLS rows among them."""
        rows_B = lengths_B.new_full(lengths_B.shape, self.num_tokens, dtype=torch.float64)
        project = {"project": 2 * rows_B * self.project.in_features * self.project.out_features}
        pma = {} if self.pma is None else self.pma.flops(lengths_B)
        return merge(pma, as_part("summary", project, self.gating.flops(rows_B)))
