"""Counting a model's matrix multiplication FLOPs, per part and per example, on actual jagged lengths.

A count is a dict: part name -> (B,) float64 forward FLOPs, 2 for each multiply-add of a matrix multiplication and
nothing for the rest: what `torch.utils.flop_counter.FlopCounterMode` counts on inputs without padding. (One part
differs: "attention" in a window, or causal, counts the query-key pairs that are needed; a dense kernel computes all.)
Each block of the model has a method `flops` that gives one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Parts whose backward has 5 matrix multiplications for 2 of the forward, because it computes the logits again.
ATTENTION_PARTS = frozenset({"attention", "gdpa", "pooling"})


def backward_multiplier(part: str) -> float:
    """FLOPs of a part's backward over those of its forward: 2.5 for attention and its like, 2 for linear maps."""
    return 2.5 if part in ATTENTION_PARTS else 2.0


def merge(*counts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sum of several counts, part by part."""
    total: dict[str, Tensor] = {}
    for count in counts:
        for part, flops_B in count.items():
            total[part] = total[part] + flops_B if part in total else flops_B
    return total


def as_part(part: str, *counts: dict[str, Tensor]) -> dict[str, Tensor]:
    """All of several counts under one name; empty if they are."""
    flops = [flops_B for count in counts for flops_B in count.values()]
    return {part: torch.stack(flops).sum(0)} if flops else {}


@dataclass(frozen=True)
class FlopCount:
    """What one batch costs.

    Attributes:
        parts: part name -> (B,) float64 forward FLOPs.
    """

    parts: dict[str, Tensor]

    @property
    def forward_B(self) -> Tensor:
        """(B,) float64: forward FLOPs of each example."""
        return torch.stack(list(self.parts.values())).sum(0)

    @property
    def training_B(self) -> Tensor:
        """(B,) float64: forward and backward FLOPs of each example, without recomputation."""
        return torch.stack([(1 + backward_multiplier(part)) * f_B for part, f_B in self.parts.items()]).sum(0)

    @property
    def forward(self) -> Tensor:
        """Scalar float64: forward FLOPs of the batch."""
        return self.forward_B.sum()

    @property
    def training(self) -> Tensor:
        """Scalar float64: forward and backward FLOPs of the batch; over step time and peak it is the MFU."""
        return self.training_B.sum()

    def shares(self) -> dict[str, float]:
        """Part name -> its share of the batch's forward FLOPs, largest first; zeros for an empty batch."""
        total = float(self.forward) or 1.0
        return dict(sorted(((p, float(f.sum()) / total) for p, f in self.parts.items()), key=lambda item: -item[1]))
