import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from torchmetrics.functional.classification import binary_auroc

from faceter.tools.train import metrics


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 200), st.integers(1, 30), st.integers(0, 2**31))
def test_against_sklearn(rows, levels, seed):
    rng = np.random.default_rng(seed)
    # Few levels: many ties.
    logits = torch.from_numpy(rng.integers(0, levels, rows) / levels * 4 - 2)
    labels = torch.from_numpy((rng.random(rows) < 0.4).astype(np.float64))
    weights = torch.from_numpy(rng.random(rows) + 0.01)
    got = metrics.compute(logits, labels, weights)
    probability = logits.sigmoid()
    rate = float((weights * labels).sum() / weights.sum())
    logloss = log_loss(labels, probability, sample_weight=weights, labels=[0, 1])
    assert got.logloss == pytest.approx(logloss, rel=1e-9)
    assert got.base_rate == pytest.approx(rate)
    if 0 < labels.sum() < rows:
        assert got.auc == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=1e-12)
        entropy = log_loss(labels, torch.full((rows,), rate), sample_weight=weights, labels=[0, 1])
        assert got.ne == pytest.approx(logloss / entropy, rel=1e-9)
        assert got.calibration == pytest.approx(float((weights * probability).sum() / (weights * labels).sum()))
    else:
        assert got.auc is None
        assert got.ne is None


def test_against_torchmetrics():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(500, generator=generator), torch.randint(0, 2, (500,), generator=generator)
    expected = binary_auroc(logits.sigmoid(), labels)
    assert metrics.auc(logits, labels, torch.ones(500)) == pytest.approx(float(expected), abs=1e-6)


def test_soft_label_is_two_weighted_rows():
    logits, labels, weights = torch.tensor([0.3, -1.0]), torch.tensor([0.25, 0.5]), torch.tensor([2.0, 1.0])
    soft = metrics.compute(logits, labels, weights)
    hard = metrics.compute(
        torch.tensor([0.3, 0.3, -1.0, -1.0]), torch.tensor([1.0, 0, 1, 0]), torch.tensor([0.5, 1.5, 0.5, 0.5])
    )
    for name in ("auc", "ne", "calibration", "base_rate", "logloss"):
        assert getattr(soft, name) == pytest.approx(getattr(hard, name)), name


def test_constant_prediction_at_the_base_rate_has_ne_one():
    labels = torch.tensor([1.0, 0, 0, 0])
    got = metrics.compute(
        torch.full((4,), float(torch.logit(torch.tensor(0.25, dtype=torch.float64)))), labels, torch.ones(4)
    )
    assert got.ne == pytest.approx(1.0, rel=1e-6)
    assert got.auc == 0.5
    assert got.calibration == pytest.approx(1.0, rel=1e-6)


def test_no_rows_and_rows_without_weight():
    empty = torch.zeros(0)
    assert metrics.compute(empty, empty, empty) == metrics.Metrics(0, None, None, None, None, None)
    got = metrics.compute(torch.zeros(2), torch.ones(2), torch.zeros(2))
    assert (got.rows, got.ne, got.auc) == (2, None, None)


def test_report_per_task_and_domain():
    generator = torch.Generator().manual_seed(1)
    both = metrics.Predictions(
        torch.randn(60, 2, generator=generator),
        torch.randint(0, 2, (60, 2), generator=generator).float(),
        torch.rand(60, generator=generator),
        torch.randint(0, 2, (60,), generator=generator),
    )
    got = metrics.report(both, ["click", "buy"], ["feed", "story"])
    assert list(got) == ["click", "buy"]
    assert list(got["buy"]) == ["all", "feed", "story"]
    assert got["buy"]["feed"].rows + got["buy"]["story"].rows == got["buy"]["all"].rows == 60
    story = both.domains == 1
    expected = metrics.compute(both.logits[story, 0], both.labels[story, 0], both.weights[story])
    assert got["click"]["story"] == expected
    assert list(metrics.report(both, ["click"], ["feed"])["click"]) == ["all"]


def test_merging_parts_changes_nothing_and_newest_keeps_the_end():
    parts = [
        metrics.Predictions(torch.randn(n, 1), torch.ones(n, 1), torch.ones(n), torch.zeros(n, dtype=torch.int64))
        for n in (3, 0, 5)
    ]
    both = metrics.Predictions.concatenate([metrics.Predictions.empty(1), *parts])
    assert len(both) == 8
    assert torch.equal(both.newest(4).logits, parts[2].logits[1:])
    assert len(both.newest(100)) == 8
