import pytest
import torch

from faceter.model.distill import Distillation, DistillationLoss, StudentAdapter
from faceter.model.loss import multitask_bce

KINDS = ["bce", "mse"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_least_where_student_is_teacher(kind, temperature):
    torch.manual_seed(0)
    teacher = torch.randn(50, 2)
    loss = DistillationLoss(kind, temperature)
    student = teacher.clone().requires_grad_()
    loss(student, teacher).backward()
    torch.testing.assert_close(student.grad, torch.zeros(50, 2), atol=1e-6, rtol=0)
    assert loss(teacher + 0.5, teacher) > loss(teacher, teacher)


def test_bce_by_hand():
    student, teacher, weights = torch.randn(5, 2), torch.randn(5, 2), torch.rand(5)
    p, q = torch.sigmoid(student / 3), torch.sigmoid(teacher / 3)
    each = -(q * p.log() + (1 - q) * (1 - p).log())
    want = 9 * (each * weights[:, None]).sum(0).div(weights.sum()).mean()
    torch.testing.assert_close(DistillationLoss("bce", 3.0)(student, teacher, weights), want)


def test_mse_does_not_depend_on_temperature():
    student, teacher = torch.randn(5, 2), torch.randn(5, 2)
    want = (student - teacher).square().mean()
    for temperature in (1.0, 3.0):
        torch.testing.assert_close(DistillationLoss("mse", temperature)(student, teacher), want)


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_gets_no_gradient_and_no_rows_no_loss(kind):
    teacher = torch.randn(3, 1, requires_grad=True)
    DistillationLoss(kind)(torch.randn(3, 1, requires_grad=True), teacher).backward()
    assert teacher.grad is None
    assert DistillationLoss(kind)(torch.zeros(0, 1), torch.zeros(0, 1)) == 0


def test_bad_arguments():
    with pytest.raises(ValueError, match="kind must be bce or mse, is 'kl'"):
        DistillationLoss("kl")
    with pytest.raises(ValueError, match="temperature must be positive, is 0"):
        DistillationLoss(temperature=0)


def test_adapter_starts_as_the_identity_and_moves_a_biased_teacher():
    torch.manual_seed(0)
    truth = torch.randn(2000, 1)
    labels = torch.bernoulli(truth.sigmoid())
    teacher = 2 * truth + 1.5  # too sure of itself, and too high
    adapter = StudentAdapter(1)
    torch.testing.assert_close(adapter(teacher), teacher)
    optimizer = torch.optim.Adam(adapter.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        multitask_bce(adapter(teacher), labels).total.backward()
        optimizer.step()
    with torch.no_grad():
        error = (adapter(teacher) - truth).square().mean()
    assert error < 0.1 * (teacher - truth).square().mean()


def test_adapter_reads_features():
    adapter = StudentAdapter(2, feature_dim=3)
    adapter.gain_T.data.fill_(1.0)
    features = torch.randn(4, 3, requires_grad=True)
    teacher = torch.randn(4, 2)
    assert not torch.equal(adapter(teacher, features), adapter(teacher, features + 1))
    adapter(teacher, features).sum().backward()
    assert features.grad is None


@pytest.mark.parametrize("adapter", [False, True])
def test_distillation_moves_the_student_towards_its_teacher(adapter):
    torch.manual_seed(0)
    features = torch.randn(500, 6)
    teacher = 2 * features[:, :1] - features[:, 1:2]
    labels = torch.bernoulli(teacher.sigmoid())
    student = torch.nn.Linear(6, 4)  # its output is the representation
    distillation = Distillation(4, tasks=1, hidden=(8,), adapter=adapter)
    before = DistillationLoss()(distillation.head(student(features), torch.zeros(500, dtype=torch.int64)), teacher)
    optimizer = torch.optim.Adam([*student.parameters(), *distillation.parameters()], lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        distillation(student(features), teacher, labels).backward()
        optimizer.step()
    assert student.weight.grad.any()
    auxiliary = distillation.head(student(features), torch.zeros(500, dtype=torch.int64))
    floor = DistillationLoss()(teacher, teacher)  # the entropy of the teacher's own predictions
    assert DistillationLoss()(auxiliary, teacher) - floor < 0.2 * (before - floor)


def test_weight_scales_the_distillation_only():
    torch.manual_seed(0)
    first = Distillation(3, 1, adapter=False)
    second = Distillation(3, 1, adapter=False, weight=2.5)
    second.load_state_dict(first.state_dict())
    inputs = torch.randn(4, 3), torch.randn(4, 1), torch.ones(4, 1)
    torch.testing.assert_close(second(*inputs), 2.5 * first(*inputs))
