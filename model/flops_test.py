import torch

from faceter.model.flops import FlopCount, as_part, backward_multiplier, merge

A = {"wukong": torch.tensor([1.0, 2.0]), "attention": torch.tensor([10.0, 0.0])}
B = {"wukong": torch.tensor([3.0, 3.0])}


def test_merge_adds_part_by_part_and_keeps_its_inputs():
    total = merge(A, B)
    assert total["wukong"].tolist() == [4, 5]
    assert total["attention"].tolist() == [10, 0]
    assert A["wukong"].tolist() == [1, 2]
    assert merge() == {}


def test_as_part_sums_all():
    assert as_part("x", A, B)["x"].tolist() == [14, 5]
    assert as_part("x") == {}
    assert as_part("x", {}) == {}


def test_count():
    count = FlopCount(A)
    assert count.forward_B.tolist() == [11, 2]
    assert count.training_B.tolist() == [3 * 1 + 3.5 * 10, 3 * 2]
    assert count.forward == 13
    assert count.training == 44
    assert list(count.shares().items()) == [("attention", 10 / 13), ("wukong", 3 / 13)]


def test_empty_batch():
    count = FlopCount({"wukong": torch.zeros(0)})
    assert count.forward == count.training == 0
    assert count.shares() == {"wukong": 0}


def test_attention_costs_more_backward():
    assert [backward_multiplier(p) for p in ("attention", "gdpa", "pooling")] == [2.5] * 3
    assert backward_multiplier("attention_projection") == 2
