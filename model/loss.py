"""Binary cross entropy over several tasks, in fp32.

    L_t = sum_b w_b BCE(logit_bt, y_bt) / sum_b w_b,   L = sum_t a_t L_t

with y in [0, 1] (a probability is a soft label), row weights w and task weights a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class NonFiniteLossError(ArithmeticError):
    """A loss is NaN or infinite; the message names the tasks."""


class LossOutput(NamedTuple):
    """Attributes:
    total: scalar float32, the loss to minimise.
    per_task: (tasks,) float32, each task's loss before its task weight.
    """

    total: Tensor
    per_task: Tensor

    def check_finite(self, names: Sequence[str]) -> None:
        """Waits for the device, then raises if a task's loss is NaN or infinite.

        Args:
            names: the tasks' names.

        Raises:
            NonFiniteLossError: names the tasks and their losses.
        """
        losses = self.per_task.detach().tolist()
        bad = [f"{n} = {x}" for n, x in zip(names, losses, strict=True) if not math.isfinite(x)]
        if bad:
            raise NonFiniteLossError(f"the loss is not finite: {', '.join(bad)}")


def multitask_bce(
    logits_BT: Tensor,
    labels_BT: Tensor,
    weights_B: Tensor | None = None,
    task_weights: Sequence[float] | Tensor | None = None,
) -> LossOutput:
    """The loss above; zero for a batch of no rows or of zero weight.

    Args:
        logits_BT: (B, tasks), any float dtype; computed in fp32.
        labels_BT: (B, tasks) in [0, 1].
        weights_B: (B,) at least 0; None for ones.
        task_weights: one per task; None for ones.
    """
    losses_BT = F.binary_cross_entropy_with_logits(logits_BT.float(), labels_BT.float(), reduction="none")
    weights_B = losses_BT.new_ones(losses_BT.shape[0]) if weights_B is None else weights_B.float()
    total_weight = weights_B.sum()
    per_task = (losses_BT * weights_B.unsqueeze(1)).sum(0) / total_weight.where(total_weight > 0, 1.0)
    scale = torch.ones_like(per_task) if task_weights is None else torch.as_tensor(task_weights).to(per_task)
    return LossOutput((per_task * scale).sum(), per_task)
