"""Weights and updates of the distributed model, in one process."""

import pytest
import torch

from faceter.model.config import GemConfig
from faceter.model.random_batch import random_batch
from faceter.tools.train import model_parallel, parallel
from faceter.tools.train.config import OptimizerOptions

CONFIG = GemConfig.from_name("tiny")


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with parallel.start("cpu") as alone:
        yield alone


def made(processes, seed=0, options=None):
    gem = model_parallel.build(CONFIG, seed)
    return model_parallel.distribute(gem, processes, options or OptimizerOptions(), 8, seed)


def weights(model):
    tables = {name: w.clone() for name, w in model_parallel.table_shards(model).items()}
    return tables | {n: p.detach().clone() for n, p in model_parallel.dense_parameters(model).items()}


def test_initial_weights_come_from_the_seed(processes):
    first, again, other = (weights(made(processes, seed)) for seed in (0, 0, 1))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    tables = [name for name in first if isinstance(name, tuple)]
    assert len(tables) == len(CONFIG.schema.tables)
    assert not any(torch.equal(first[name], other[name]) for name in tables)
    for name in tables:
        assert 0.5 < float(first[name].std()) / CONFIG.embedding_std < 2


def test_rows_do_not_depend_on_how_tables_are_cut(processes, monkeypatch):
    """What a chunk holds is fixed by its place in the table, so any shard draws its rows from the same chunks."""
    monkeypatch.setattr(model_parallel, "CHUNK_ROWS", 7)
    model = made(processes)
    whole = {name: w.clone() for (name, _), w in model_parallel.table_shards(model).items()}
    configs = model_parallel.table_configs(model_parallel.build(CONFIG, 0))
    parts = {
        (name, first): torch.zeros(len(w[first : first + 9]), w.shape[1])
        for name, w in whole.items()
        for first in range(0, len(w), 9)
    }
    monkeypatch.setattr(model_parallel, "table_shards", lambda _: parts)
    model_parallel.draw_tables(model, configs, 0)
    for (name, first), part in parts.items():
        assert torch.equal(part, whole[name][first : first + 9]), (name, first)


def test_fused_update_is_rowwise_adagrad(processes):
    """Two steps by hand on the tables of the unsharded model."""
    lr, eps = 0.3, 1e-4
    model = made(processes, options=OptimizerOptions(embedding_lr=99.0, embedding_eps=eps))
    plain = model_parallel.Gem(CONFIG)
    plain.core.load_state_dict(model_parallel.inner(model).core.state_dict())
    tables = dict(plain.embeddings.named_parameters())
    shards = {name.removeprefix("embeddings."): w for (name, _), w in model_parallel.table_shards(model).items()}
    assert tables.keys() == shards.keys()
    for name, p in tables.items():
        p.data.copy_(shards[name])
    second_moment = {name: torch.zeros(len(p), 1) for name, p in tables.items()}
    batch = random_batch(CONFIG.schema, 16, generator=torch.Generator().manual_seed(0))
    for step in range(2):
        model_parallel.set_embedding_lr(model, lr / (step + 1))
        model(batch).logits.square().sum().backward()
        plain.zero_grad()
        plain(batch).logits.square().sum().backward()
        for name, p in tables.items():
            second_moment[name] += p.grad.square().mean(1, keepdim=True)
            p.data -= lr / (step + 1) * p.grad / (second_moment[name].sqrt() + eps)
    for name, p in tables.items():
        torch.testing.assert_close(shards[name], p.detach(), rtol=1e-4, atol=1e-6)
