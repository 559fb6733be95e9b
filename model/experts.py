"""Mixture of Wukong experts by feature partition (Kunlun, arXiv 2602.10016).

The tokens concat(X, summaries) are cut into `experts` contiguous parts; expert e is a Wukong stack of its own on part
e, and gives its share of the output tokens. The experts' outputs Z are concatenated and mixed once, so that what one
part knows reaches the others at the next layer:

    Z = concat_e(Wukong_e(part_e(X))),   X' = LN(Z + W Z)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faceter.model.config import ConfigError, WukongConfig
from faceter.model.flops import as_part
from faceter.model.wukong import LinearCompressionBlock, WukongStack


def partition(total: int, parts: int) -> list[int]:
    """`total` in `parts` sizes that differ by one at most, the larger first."""
    return [total // parts + (i < total % parts) for i in range(parts)]


class WukongExperts(nn.Module):
    """`config.experts` Wukong stacks; with one expert a plain stack.

    Args:
        in_tokens: tokens that come in, at least one per expert.
        out_tokens: tokens that go out.
        dim: their width E.
        config: experts, and the layers, FMB and rank of each stack; `fmb_tokens` are shared out like `out_tokens`.
        dropout: on hidden layers of the FMBs' MLPs.

    Raises:
        ConfigError: fewer tokens than experts, or an expert without both FMB and LCB tokens.
    """

    def __init__(self, in_tokens: int, out_tokens: int, dim: int, config: WukongConfig, dropout: float = 0.0):
        super().__init__()
        self.dim = dim
        experts = config.experts
        if in_tokens < experts:
            raise ConfigError(f"wukong: experts = {experts} can't share {in_tokens} tokens; lower experts")
        self.in_parts = partition(in_tokens, experts)
        shares = list(
            zip(self.in_parts, partition(out_tokens, experts), partition(config.fmb_tokens, experts), strict=True)
        )
        if not all(0 < fmb < out for _, out, fmb in shares):
            raise ConfigError(
                f"wukong: experts = {experts} can't share {out_tokens} output tokens, {config.fmb_tokens} of them "
                "of the FMB, so that each has both FMB and LCB tokens; change x_tokens, fmb_tokens or experts"
            )
        self.stacks = nn.ModuleList(
            WukongStack(n_in, n_out, dim, config.layers, fmb, config.fm_rank, config.hidden, dropout)
            for n_in, n_out, fmb in shares
        )
        self.mix = LinearCompressionBlock(out_tokens, out_tokens) if experts > 1 else None
        self.norm = nn.LayerNorm(dim) if experts > 1 else None

    def forward(self, x_BNE: Tensor) -> Tensor:
        """(B, in_tokens, E) -> (B, out_tokens, E)."""
        if self.mix is None:
            return self.stacks[0](x_BNE)
        parts = x_BNE.split(self.in_parts, dim=1)
        z_BME = torch.cat([stack(part) for stack, part in zip(self.stacks, parts, strict=True)], dim=1)
        return self.norm(z_BME + self.mix(z_BME))

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        mix = [self.mix.flops(lengths_B, self.dim)] if self.mix is not None else []
        return as_part("wukong", *(stack.flops(lengths_B) for stack in self.stacks), *mix)
