"""Adding up FLOP counts: part name -> (B,) float64, forward FLOPs of each example.

A count is what `torch.utils.flop_counter` counts, matmuls at two per multiply-add, on the rows that are valid.
"""

from __future__ import annotations

from torch import Tensor


def add_flops(*counts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sum of several counts, part by part; a new dict."""
    total: dict[str, Tensor] = {}
    for count in counts:
        for part, flops_B in count.items():
            total[part] = total[part] + flops_B if part in total else flops_B
    return total
