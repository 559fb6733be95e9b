import dataclasses

import pytest
import torch

from faceter.model.config import ConfigError, GemConfig
from faceter.model.gem import Gem
from faceter.model.random_batch import random_batch
from faceter.tools.train import replay

CONFIG = GemConfig.from_name("tiny")


@pytest.fixture
def gem():
    torch.manual_seed(0)
    return Gem(CONFIG)


@pytest.fixture
def batch():
    return random_batch(CONFIG.schema, 8, generator=torch.Generator().manual_seed(0))


def test_all_is_well(gem, batch):
    assert "does not happen again" in replay.first_non_finite(gem, batch)


def test_first_module_by_order_of_computing(gem, batch):
    with torch.no_grad():
        gem.core.heads.mlps[0].layers[0].weight[0, 0] = float("nan")
    found = replay.first_non_finite(gem, batch)
    assert "module core.heads.mlps.0.layers.0 (Linear); its inputs are finite" in found


def test_embedding_table(gem, batch):
    with torch.no_grad():
        next(iter(gem.embeddings.ec.parameters())).fill_(float("inf"))
    assert "module embeddings.ec" in replay.first_non_finite(gem, batch)


def test_weight_that_is_not_finite(gem, batch):
    batch.weights[0] = float("inf")
    assert "look at the batch's labels and weights" in replay.first_non_finite(gem, batch)


def test_batch_comes_back_whole(tmp_path, batch):
    path = tmp_path / "a.pt"
    replay.save(path, batch, CONFIG, {"step": 1})
    tree = torch.load(path, weights_only=True)
    back = replay._batch(tree["batch"])
    for name in ("dense", "timestamps", "labels", "weights", "domains"):
        assert torch.equal(getattr(back, name), getattr(batch, name))
    for name in ("sparse", "sequence_ids"):
        one, other = getattr(back, name), getattr(batch, name)
        assert one.keys() == other.keys()
        assert torch.equal(one.values(), other.values())
        assert torch.equal(one.lengths(), other.lengths())
    for name, events in batch.events.items():
        for field in dataclasses.fields(events):
            one, other = getattr(back.events[name], field.name), getattr(events, field.name)
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_later_format_is_refused(tmp_path, batch, monkeypatch):
    path = tmp_path / "a.pt"
    monkeypatch.setattr(replay, "FORMAT", 2)
    replay.save(path, batch, CONFIG, {"step": 1})
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="has format 2, this version reads 1"):
        replay.replay(path)
