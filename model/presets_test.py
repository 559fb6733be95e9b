from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn
from faceter.model.config import GemConfig
from faceter.model.gem import Gem
from faceter.model.presets import PRESETS
from faceter.model.random_batch import random_batch, random_embedded

GIB = 2**30


@pytest.mark.parametrize("name", PRESETS)
def test_builds_on_meta(name):
    gem = Gem(GemConfig.from_name(name), device="meta")
    assert all(p.is_meta for p in gem.parameters())


@pytest.mark.parametrize("name", ["tiny", "ml100k"])
def test_trains(name):
    config = GemConfig.from_name(name)
    gem = Gem(config)
    gem(random_batch(config.schema, 2)).logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in gem.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_takes_another_schema(name):
    schema = Schema(
        "own",
        (Label("y"),),
        (DenseColumn("a"), DenseColumn("b")),
        (SparseColumn("u", 9),),
        (SequenceGroup("click", (SparseColumn("click_id", 9),), max_length=12),),
    )
    config = GemConfig.from_name(name, schema)
    assert config.schema is schema
    Gem(config, device="meta")


def half_of_the_maximum(gem):
    """FLOPs of an example whose histories are half as long as they can be."""
    lengths = {g.name: torch.tensor([g.max_length // 2]) for g in gem.config.schema.sequences}
    return sum(flops_B.item() for flops_B in gem.core.flops(lengths, torch.ones(1, dtype=torch.int64)).values())


def test_h200_flops():
    h200, small = (Gem(GemConfig.from_name(name), device="meta") for name in ("h200", "h200_small"))
    assert 10e9 < half_of_the_maximum(h200) < 30e9
    assert 0.05 < half_of_the_maximum(small) / half_of_the_maximum(h200) < 0.15


def test_h200_flops_are_what_torch_counts():
    """On meta, at full length, with dense attention."""
    config = GemConfig.from_name("h200")
    config = replace(config, events=tuple(replace(e, attention="full") for e in config.events))
    gem = Gem(config, device="meta")
    embedded = random_embedded(config, 2, 2000, device="meta")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        gem.core(embedded)
    lengths = {g.name: torch.full((2,), g.max_length) for g in config.schema.sequences}
    parts = gem.core.flops(lengths, torch.ones(2, dtype=torch.int64))
    assert sum(f.sum() for f in parts.values()) == counter.get_total_flops()


class _FusedAttention(torch.autograd.Function):
    """Saves what a fused attention kernel saves; on meta the plain one would save the probabilities."""

    @staticmethod
    def forward(ctx, q, k, v, mask):
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, mask)
        return out


def saved_bytes(gem, batch, monkeypatch):
    """Bytes of activations that the forward keeps for the backward, in bf16, at full lengths."""
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, k, v, attn_mask: _FusedAttention.apply(q, k, v, attn_mask),
    )
    config = gem.config
    embedded = random_embedded(config, batch, 2000, device="meta", dtype=torch.bfloat16)
    kept = {}

    def pack(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage()._cdata] = tensor  # views of one storage count once
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = gem.core.bfloat16()(embedded)
    assert out.logits.shape == (batch, 3)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_h200_fills_its_memory_and_no_more(monkeypatch):
    """The arithmetic of `presets._h200`, which leaves about a quarter for what autocast and the allocator add."""
    gem = Gem(GemConfig.from_name("h200"), device="meta")
    tables = sum(p.numel() for p in gem.embeddings.parameters()) * 4 / GIB
    rowwise = sum(p.shape[0] for p in gem.embeddings.parameters()) * 4 / GIB
    dense = sum(p.numel() for p in gem.core.parameters()) * (4 + 4 + 8) / GIB
    activations = saved_bytes(gem, 1024, monkeypatch) / GIB
    print(f"tables {tables:.1f}, AdaGrad {rowwise:.1f}, dense {dense:.1f}, activations {activations:.1f} GiB")
    assert 90 < tables + rowwise + dense + activations < 0.8 * 139
