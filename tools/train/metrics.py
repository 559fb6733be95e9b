"""NE, AUC and calibration, exact over a set of rows, with row weights and soft labels.

A row with label y in [0, 1] and weight w counts as w y positive and w (1 - y) negative examples.

    NE = sum w BCE(logit, y) / (sum w * H(p)),   p = sum w y / sum w,   H = entropy     (He et al., ADKDD 2014)
    AUC = P(score of a positive > score of a negative) + P(equal) / 2
    calibration = sum w sigmoid(logit) / sum w y

torchmetrics has no weights or soft labels in its exact AUC, torchrec's metrics are windowed and ignore ties; on hard
labels without weights torchmetrics agrees, with weights scikit-learn does (metrics_test.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Metrics:
    """Of one task on one set of rows; None where it isn't defined (no rows, or labels all 0 or all 1).

    Attributes:
        rows: number of rows.
        base_rate: weighted mean label.
        logloss: weighted mean BCE, nats.
        ne: logloss over the entropy of the base rate.
        auc: area under the ROC curve.
        calibration: predicted over actual positives.
    """

    rows: int
    base_rate: float | None
    logloss: float | None
    ne: float | None
    auc: float | None
    calibration: float | None


def auc(scores_N: Tensor, labels_N: Tensor, weights_N: Tensor) -> float | None:
    """Exact weighted AUC with ties, in float64."""
    _, group_N = torch.unique(scores_N, return_inverse=True)  # ascending; equal scores are one group
    groups = int(group_N.max()) + 1 if len(group_N) else 0
    weights_N, labels_N = weights_N.double(), labels_N.double()
    positive = torch.zeros(groups, dtype=torch.float64).index_add_(0, group_N, weights_N * labels_N)
    negative = torch.zeros(groups, dtype=torch.float64).index_add_(0, group_N, weights_N * (1 - labels_N))
    total = float(positive.sum() * negative.sum())
    if not total > 0:
        return None
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum()) / total


def compute(logits_N: Tensor, labels_N: Tensor, weights_N: Tensor) -> Metrics:
    """The metrics of one task.

    Args:
        logits_N, labels_N, weights_N: (N,) on the CPU.
    """
    logits_N, labels_N, weights_N = logits_N.double(), labels_N.double(), weights_N.double()
    weight, positives = float(weights_N.sum()), float((weights_N * labels_N).sum())
    if not weight > 0:
        return Metrics(len(logits_N), None, None, None, None, None)
    rate = positives / weight
    logloss = (
        float((F.binary_cross_entropy_with_logits(logits_N, labels_N, reduction="none") * weights_N).sum()) / weight
    )
    defined = 0 < rate < 1
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate)) if defined else 0.0
    return Metrics(
        rows=len(logits_N),
        base_rate=rate,
        logloss=logloss,
        ne=logloss / entropy if defined else None,
        auc=auc(logits_N, labels_N, weights_N),
        calibration=float((weights_N * logits_N.sigmoid()).sum()) / positives if positives > 0 else None,
    )


@dataclass
class Predictions:
    """What a model said about N rows.

    Attributes:
        logits: (N, tasks) float32.
        labels: (N, tasks) float32.
        weights: (N,) float32.
        domains: (N,) int64.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor
    domains: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        return cls(*(torch.cat([getattr(p, n) for p in parts]) for n in ("logits", "labels", "weights", "domains")))

    @classmethod
    def empty(cls, tasks: int) -> Predictions:
        return cls(torch.zeros(0, tasks), torch.zeros(0, tasks), torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.weights)

    def newest(self, rows: int) -> Predictions:
        """The last `rows` rows (copies: the others can be freed)."""
        start = max(len(self) - rows, 0)
        return Predictions(*(t[start:].clone() for t in (self.logits, self.labels, self.weights, self.domains)))

    def task(self, index: int, domain: int | None = None) -> Metrics:
        """Metrics of one task, on the rows of one domain or all."""
        chosen = slice(None) if domain is None else self.domains == domain
        return compute(self.logits[chosen, index], self.labels[chosen, index], self.weights[chosen])


def report(predictions: Predictions, tasks: Sequence[str], domains: Sequence[str]) -> dict[str, dict[str, Metrics]]:
    """Task -> domain -> metrics; the domain "all" comes first, the others only if there is more than one."""
    return {
        task: {"all": predictions.task(t)}
        | ({name: predictions.task(t, d) for d, name in enumerate(domains)} if len(domains) > 1 else {})
        for t, task in enumerate(tasks)
    }


def from_plain(tree: dict[str, dict[str, dict]]) -> dict[str, dict[str, Metrics]]:
    """A report from what `config.plain` made of it."""
    return {task: {domain: Metrics(**m) for domain, m in domains.items()} for task, domains in tree.items()}
