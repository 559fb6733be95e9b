"""Knowledge distillation of a foundation model (teacher) into a small one (student).

ExFM (arXiv 2502.17494): the student gets a second, auxiliary head for the teacher's predictions, so that the teacher's
bias does not reach the head that serves; and a student adapter, a small network trained on true labels, moves the
teacher's predictions (which are late and of another data distribution) towards the student's task before they are used
as targets:

    L_adapter = BCE(A(t), y)
    L_kd = T^2 BCE(s_aux / T, sigmoid(stop(A(t)) / T))        or  MSE(s_aux / T, stop(A(t)) / T) T^2
    L = L_student + lambda L_kd + L_adapter

with teacher logits t, student's auxiliary logits s_aux and temperature T (arXiv 1503.02531 for T and its square).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from faceter.model.heads import MultiTaskHeads
from faceter.model.loss import multitask_bce
from faceter.model.mlp import MLP


class DistillationLoss(nn.Module):
    """Distance of a student's logits from a teacher's, weighted mean over rows, mean over tasks.

    Args:
        kind: "bce" on probabilities, or "mse" on logits.
        temperature: T; both logits are divided by it, the loss is multiplied by its square.

    Raises:
        ValueError: unknown kind, or a temperature that is not positive.
    """

    def __init__(self, kind: Literal["bce", "mse"] = "bce", temperature: float = 1.0):
        super().__init__()
        if kind not in ("bce", "mse"):
            raise ValueError(f"kind must be bce or mse, is {kind!r}")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, is {temperature}")
        self.kind = kind
        self.temperature = temperature

    def forward(self, student_BT: Tensor, teacher_BT: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """(B, tasks) logits of both, (B,) weights -> scalar float32; no gradient reaches the teacher."""
        student_BT = student_BT.float() / self.temperature
        teacher_BT = teacher_BT.detach().float() / self.temperature
        if self.kind == "bce":
            per_task = multitask_bce(student_BT, teacher_BT.sigmoid(), weights_B).per_task
        else:
            weights_B = torch.ones_like(student_BT[:, 0]) if weights_B is None else weights_B.float()
            total_weight = weights_B.sum()
            squares_BT = (student_BT - teacher_BT).square() * weights_B.unsqueeze(1)
            per_task = squares_BT.sum(0) / total_weight.where(total_weight > 0, 1.0)
        return per_task.mean() * self.temperature**2


class StudentAdapter(nn.Module):
    """A(t, r): the teacher's logits, corrected for the student's data: t + MLP([t ‖ r]).

    Starts as the identity: the MLP's output is scaled by a gain that starts at zero.

    Args:
        tasks: number of tasks.
        feature_dim: width R of features that the correction may depend on (the student's representation); 0 for none.
        hidden: widths of the MLP.
    """

    def __init__(self, tasks: int, feature_dim: int = 0, hidden: tuple[int, ...] = (32,)):
        super().__init__()
        self.mlp = MLP(tasks + feature_dim, hidden, tasks)
        self.gain_T = nn.Parameter(torch.zeros(tasks))

    def forward(self, teacher_BT: Tensor, features_BR: Tensor | None = None) -> Tensor:
        """(B, tasks) logits and (B, R) features -> (B, tasks) float32 logits; no gradient reaches the inputs."""
        teacher_BT = teacher_BT.detach().float()
        inputs = [teacher_BT] if features_BR is None else [teacher_BT, features_BR.detach().float()]
        return teacher_BT + self.gain_T * self.mlp(torch.cat(inputs, dim=1)).float()


class Distillation(nn.Module):
    """The two extra terms of L above: auxiliary head on the student's representation, and student adapter.

    Args:
        representation_dim: width R of the student's representation (`GemCore.representation_dim`).
        tasks: number of tasks.
        hidden: widths of the auxiliary head's MLP.
        loss: DistillationLoss; None for BCE at temperature 1.
        weight: lambda.
        adapter: train a student adapter; else the teacher's logits are the targets as they are.
    """

    def __init__(
        self,
        representation_dim: int,
        tasks: int,
        hidden: tuple[int, ...] = (64,),
        loss: DistillationLoss | None = None,
        weight: float = 1.0,
        adapter: bool = True,
    ):
        super().__init__()
        self.head = MultiTaskHeads(representation_dim, hidden, tasks)
        self.adapter = StudentAdapter(tasks) if adapter else None
        self.loss = loss or DistillationLoss()
        self.weight = weight

    def forward(
        self, representation_BR: Tensor, teacher_BT: Tensor, labels_BT: Tensor, weights_B: Tensor | None = None
    ) -> Tensor:
        """Scalar float32: lambda L_kd + L_adapter, to be added to the student's own loss."""
        domains_B = torch.zeros(representation_BR.shape[0], dtype=torch.int64, device=representation_BR.device)
        student_BT = self.head(representation_BR, domains_B)
        if self.adapter is None:
            return self.weight * self.loss(student_BT, teacher_BT, weights_B)
        adapted_BT = self.adapter(teacher_BT)
        own = multitask_bce(adapted_BT, labels_BT, weights_B).total
        return self.weight * self.loss(student_BT, adapted_BT, weights_B) + own
