import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.loss import NonFiniteLossError, multitask_bce


@settings(deadline=None)
@given(batch=st.integers(1, 6), tasks=st.integers(1, 3), seed=st.integers(0, 1000))
def test_is_its_equation(batch, tasks, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, tasks, generator=generator)
    labels = torch.rand(batch, tasks, generator=generator)
    weights = torch.rand(batch, generator=generator) + 0.1
    task_weights = [0.5 + t for t in range(tasks)]
    loss = multitask_bce(logits, labels, weights, task_weights)
    for t in range(tasks):
        want = 0.0
        for b in range(batch):
            p = 1 / (1 + math.exp(-logits[b, t]))
            want -= weights[b] * (labels[b, t] * math.log(p) + (1 - labels[b, t]) * math.log(1 - p))
        torch.testing.assert_close(loss.per_task[t], want / weights.sum(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss.total, sum(a * x for a, x in zip(task_weights, loss.per_task, strict=True)))


def test_defaults_are_ones():
    logits, labels = torch.randn(4, 2), torch.rand(4, 2)
    torch.testing.assert_close(multitask_bce(logits, labels), multitask_bce(logits, labels, torch.ones(4), [1, 1]))


@pytest.mark.parametrize("batch", [0, 3])
def test_nothing_to_weigh_is_zero(batch):
    logits = torch.randn(batch, 2, requires_grad=True)
    loss = multitask_bce(logits, torch.ones(batch, 2), torch.zeros(batch))
    assert loss.total == 0
    loss.total.backward()
    assert not logits.grad.any()


def test_large_logits_and_half_precision_stay_finite():
    logits = torch.tensor([[300.0], [-300.0]], dtype=torch.bfloat16)
    loss = multitask_bce(logits, torch.tensor([[0.0], [1.0]]))
    assert loss.total.dtype == torch.float32
    assert loss.total == 300


def test_non_finite_loss_names_its_task():
    logits = torch.tensor([[0.0, float("nan")]])
    loss = multitask_bce(logits, torch.ones(1, 2))
    with pytest.raises(NonFiniteLossError, match=r"^the loss is not finite: buy = nan$"):
        loss.check_finite(["click", "buy"])
    multitask_bce(logits[:, :1], torch.ones(1, 1)).check_finite(["click"])
