import math

import pytest
import torch
from torch import nn

from faceter.model.config import GemConfig
from faceter.model.gem import GemCore
from faceter.tools.train import optimizers
from faceter.tools.train.config import OptimizerOptions, ScheduleOptions


def factors(steps, last_step=None, **options):
    return [optimizers.learning_rate_factor(ScheduleOptions(**options), s, last_step) for s in range(steps)]


def test_warmup_then_constant():
    assert factors(6, 6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert factors(2, 2, warmup_steps=0) == [1.0, 1.0]


def test_decay_ends_at_the_last_step_or_after_decay_steps():
    linear = factors(13, 12, warmup_steps=2, decay="linear", final_factor=0.5)
    assert linear[2] == 1.0
    assert linear[7] == pytest.approx(0.75)
    assert linear[12] == 0.5
    cosine = factors(20, 100, warmup_steps=0, decay="cosine", decay_steps=10)
    assert cosine[5] == pytest.approx(0.5)
    assert cosine[10] == cosine[19] == pytest.approx(0.0)
    assert cosine[1] == pytest.approx((1 + math.cos(math.pi / 10)) / 2)


def test_decay_groups_of_the_model():
    core = GemCore(GemConfig.from_name("tiny"))
    decayed = optimizers.decayed(core)
    names = dict(core.named_parameters())
    assert {n for n in names if n.endswith(("qkv.weight", "w1.weight", "kron.w"))} <= decayed
    for name in names.keys() - decayed:
        last = name.rsplit(".", 1)[-1]
        assert names[name].ndim < 2 or any(p in last for p in ("bias", "gain", "gamma", "beta", "seeds", "queries")), (
            name
        )
    optimizer = optimizers.adamw(names, decayed, OptimizerOptions(weight_decay=0.3))
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(names)


def test_state_is_made_by_name_and_loads_in_place():
    linear = nn.Linear(3, 2)
    names = dict(linear.named_parameters())
    optimizer = optimizers.adamw(names, set(), OptimizerOptions())
    state = optimizers.adamw_state(optimizer, names)
    assert set(state) == {"weight", "bias"}
    state["weight"]["exp_avg"].fill_(1.0)
    state["weight"]["step"].fill_(7.0)
    assert torch.equal(optimizer.state[linear.weight]["exp_avg"], torch.ones(2, 3))
    linear(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert float(optimizer.state[linear.weight]["step"]) == 8.0


def test_average_and_its_place():
    weight = nn.Parameter(torch.zeros(2))
    average = optimizers.WeightAverage({"w": weight}, decay=0.5)
    with torch.no_grad():
        weight.fill_(1.0)
    average.update(0)  # d = 1/10
    assert torch.allclose(average.averages["w"], torch.full((2,), 0.9))
    average.update(100)  # d = 0.5
    assert torch.allclose(average.averages["w"], torch.full((2,), 0.95))
    with average.in_place():
        assert torch.allclose(weight, torch.full((2,), 0.95))
    assert torch.equal(weight, torch.ones(2))
    assert torch.allclose(average.averages["w"], torch.full((2,), 0.95))


def test_table_decay_is_decoupled():
    tables = [torch.ones(2, 2), torch.full((1, 3), 2.0)]
    optimizers.decay_tables(tables, lr=0.1, decay=0.5)
    assert torch.allclose(tables[0], torch.full((2, 2), 0.95))
    assert torch.allclose(tables[1], torch.full((1, 3), 1.9))
