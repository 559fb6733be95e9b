"""Optimizers of the dense part, the learning rates over time, and the moving average of weights.

Embedding tables are updated inside the backward pass by fbgemm's fused rowwise AdaGrad (`model_parallel`): here they
only get their learning rate. Rowwise AdaGrad, for row r with gradient g_r of width D (Gupta et al., 2014; torchrec):

    v_r += mean(g_r^2),   E_r -= lr g_r / (sqrt(v_r) + eps)

Their weight decay is decoupled and on whole tables, as AdamW's is on matrices: E *= 1 - lr * decay, each step.
(fbgemm's own is on the rows of the batch only, and its CPU kernels leave it out without a word: fbgemm-gpu-cpu 1.8.0.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from faceter.tools.train.config import OptimizerOptions, ScheduleOptions


def learning_rate_factor(options: ScheduleOptions, step: int, last_step: int | None) -> float:
    """What the peak learning rates are multiplied by in a step.

    Args:
        step: from 0.
        last_step: where the decay ends unless `decay_steps` says so; None if nobody knows.
    """
    warmup = options.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if options.decay == "constant":
        return 1.0
    length = options.decay_steps or max((last_step or 0) - warmup, 0)
    if length == 0:
        return 1.0
    done = min((step - warmup) / length, 1.0)
    shape = 1 - done if options.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return options.final_factor + (1 - options.final_factor) * shape


def decayed(module: nn.Module) -> set[str]:
    """Names of the parameters that weight decay pulls towards zero: matrices of maps.

    Not biases, gains (of norms, of heads, of domains), and seeds and queries: those are tokens, data to their layer.
    """
    left_out = ("bias", "gain", "gamma", "beta", "seeds", "queries")
    return {
        name
        for name, p in module.named_parameters()
        if p.ndim >= 2 and not any(part in name.rsplit(".", 1)[-1] for part in left_out)
    }


def adamw(parameters: dict[str, nn.Parameter], decay: set[str], options: OptimizerOptions) -> torch.optim.AdamW:
    """AdamW in two groups, with and without weight decay."""
    groups = [
        {"params": [p for n, p in parameters.items() if n in decay], "weight_decay": options.weight_decay},
        {"params": [p for n, p in parameters.items() if n not in decay], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=options.dense_lr, betas=(options.beta1, options.beta2)
    )


def adamw_state(optimizer: torch.optim.AdamW, parameters: dict[str, nn.Parameter]) -> dict[str, dict[str, Tensor]]:
    """AdamW's state by parameter name, made (zero) where a parameter has not had a gradient yet.

    The tensors are the optimizer's own: a checkpoint is loaded into them in place.
    """
    for p in parameters.values():
        if not optimizer.state[p]:
            optimizer.state[p] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
            }
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}


@torch.no_grad()
def decay_tables(shards: list[Tensor], lr: float, decay: float) -> None:
    """The weight decay above; reads and writes the tables once."""
    torch._foreach_mul_(shards, 1 - lr * decay)


class WeightAverage:
    """Exponential moving average of weights: a_t = d a_{t-1} + (1 - d) w_t.

    d is min(decay, (1 + t) / (10 + t)), so that the first steps don't weigh on it for long (as in TensorFlow's
    ExponentialMovingAverage).

    Args:
        weights: name -> tensor that training changes in place.
        decay: d, in the end.
    """

    def __init__(self, weights: dict[str, Tensor], decay: float):
        self.decay = decay
        self.weights = {name: w.detach() for name, w in weights.items()}
        self.averages = {name: w.clone() for name, w in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step `step`, from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.averages.values()), list(self.weights.values()), 1 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averages inside the block, its own weights again after it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            kept = weight.clone()
            weight.copy_(self.averages[name])
            self.averages[name].copy_(kept)
