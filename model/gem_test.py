import dataclasses
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn
from faceter.model.config import EventConfig, GemConfig, WukongConfig
from faceter.model.embeddings import EmbeddedBatch, table_key
from faceter.model.gem import Gem, GemCore
from faceter.model.loss import multitask_bce
from faceter.model.random_batch import random_batch, random_embedded

TINY = GemConfig.from_name("tiny")
GROUPS = (
    SequenceGroup(
        "click",
        ids=(SparseColumn("click_item", 30, table="item"), SparseColumn("click_kind", 4)),
        dense=(DenseColumn("dwell"),),
        timestamp="click_time",
        max_length=9,
    ),
    SequenceGroup("update", ids=(SparseColumn("update_item", 30, table="item"),), max_length=5),  # a dict's method
)


@st.composite
def schemas(draw):
    groups = GROUPS[: draw(st.integers(0, 2))]
    sparse = (SparseColumn("item", 30, table="item"), SparseColumn("keys", 7))[: draw(st.integers(0, 2))]
    num_dense = draw(st.integers(0 if groups or sparse else 1, 2))
    return Schema(
        name="drawn",
        labels=(Label("a"), Label("b"))[: draw(st.integers(1, 2))],
        dense=tuple(DenseColumn(f"d{i}") for i in range(num_dense)),
        sparse=sparse,
        sequences=groups,
        timestamp="time",
        domain=Domain("surface", (0, 1, 2)) if draw(st.booleans()) else None,
    )


@st.composite
def event_configs(draw, name: str, layers: int):
    return EventConfig(
        name=name,
        ids=draw(st.sampled_from([(), ("click_kind",)])) if name == "click" else (),
        dim=8 * (heads := draw(st.integers(1, 2))),
        heads=heads,
        tokens=draw(st.integers(1, 3)),
        seeds=draw(st.integers(1, 4)),
        kron_terms=draw(st.integers(1, 2)),
        layers=draw(st.integers(1, layers)),
        attention=draw(st.sampled_from(["full", "window", "block"])),
        window=draw(st.integers(1, 4)),
        causal=draw(st.booleans()),
        position=draw(st.sampled_from(["none", "rope", "rote", "both"])),
        activations=tuple(
            draw(st.lists(st.sampled_from(["gelu", "silu", "identity", "relu2"]), min_size=1, max_size=3))
        ),
        pffn_tokens=draw(st.integers(1, 4)),
        scale_inside=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        comp_skip=draw(st.booleans()),
    )


@st.composite
def configs(draw):
    schema = draw(schemas())
    layers = draw(st.integers(1, 3))
    experts = draw(st.integers(1, 2)) if len(schema.sparse) + len(schema.dense) > 1 else 1
    fmb = draw(st.integers(experts, 3))
    wide = tuple(c.name for c in schema.sparse if draw(st.booleans()))
    return GemConfig(
        schema=schema,
        dim=8,
        embedding_dim=4,
        dense_hidden=(6,) * draw(st.integers(0, 1)),
        dense_tokens=2,
        layers=layers,
        x_tokens=fmb + experts + draw(st.integers(0, 2)),
        summary_tokens=draw(st.integers(1, 2)),
        pma_tokens=draw(st.integers(0, 2)),
        recent_tokens=draw(st.integers(0, 2)),
        events=tuple(draw(event_configs(group.name, layers)) for group in schema.sequences),
        event_default=EventConfig(layers=1),
        wukong=WukongConfig(
            layers=draw(st.integers(1, 2)),
            fmb_tokens=fmb,
            fm_rank=draw(st.integers(0, 3)),
            hidden=(6,) * draw(st.integers(0, 1)),
            experts=experts,
        ),
        masknet=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        head_hidden=(6,) * draw(st.integers(0, 2)),
        wide=wide,
        wide_only=draw(st.booleans()) if len(schema.dense) else False,
        dropout=draw(st.sampled_from([0.0, 0.1])),
        embedding_dropout=draw(st.sampled_from([0.0, 0.1])),
    )


def loss_of(gem, batch):
    tasks = [label.weight for label in gem.config.schema.labels]
    return multitask_bce(gem(batch).logits, batch.labels, batch.weights, tasks).total


def select(batch: EmbeddedBatch, b: int, pad: int = 0) -> EmbeddedBatch:
    """Row b alone, with `pad` rows of padding more than it needs."""
    events = {}
    for name, e in batch.events.items():
        start, end = e.offsets[b].item(), e.offsets[b + 1].item()
        events[name] = e._replace(
            values=e.values[start:end],
            offsets=torch.tensor([0, end - start]),
            delta=e.delta[start:end],
            max_length=max(1, end - start) + pad,
        )
    one = slice(b, b + 1)
    return EmbeddedBatch(batch.dense[one], batch.sparse[one], events, batch.domains[one])


def to_double(batch: EmbeddedBatch) -> EmbeddedBatch:
    events = {name: e._replace(values=e.values.double()) for name, e in batch.events.items()}
    return EmbeddedBatch(batch.dense.double(), batch.sparse.double(), events, batch.domains)


@settings(deadline=None, max_examples=50)
@given(config=configs(), seed=st.integers(0, 2**31))
def test_every_config_trains(config, seed):
    """Each builds, and each parameter gets a finite gradient: all but tables that the model is told not to read."""
    torch.manual_seed(seed)
    gem = Gem(config)
    batch = random_batch(config.schema, 32)
    loss = loss_of(gem, batch)
    loss.backward()
    assert loss.isfinite()
    read = {name for group in config.schema.sequences for name in config.event_ids(group.name)}
    columns = (*config.schema.sparse, *(c for group in config.schema.sequences for c in group.ids if c.name in read))
    unread = {table_key(table) for table in config.schema.tables} - {table_key(c.table_name) for c in columns}
    for name, parameter in gem.named_parameters():
        if unread & set(name.split(".")):
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@settings(deadline=None, max_examples=25)
@given(config=configs(), seed=st.integers(0, 2**31), pad=st.integers(0, 70))
def test_rows_know_neither_each_other_nor_padding(config, seed, pad):
    torch.manual_seed(seed)
    gem = Gem(config).eval()
    for parameter in gem.core.parameters():  # zeros at the start would hide a leak
        parameter.data += 0.1 * torch.randn_like(parameter)
    batch = random_batch(config.schema, 4)
    embedded, core = to_double(gem.embeddings(batch)), gem.core.double()
    together = core(embedded)
    for b in range(4):
        alone = core(select(embedded, b, pad))
        torch.testing.assert_close(alone.representation[0], together.representation[b])
        torch.testing.assert_close(alone.logits[0], together.logits[b])


@settings(deadline=None, max_examples=15)
@given(config=configs(), rows=st.integers(0, 3))
def test_no_rows_and_no_history(config, rows):
    lengths = {group.name: torch.zeros(rows, dtype=torch.int64) for group in config.schema.sequences}
    gem, batch = Gem(config), random_batch(config.schema, rows, lengths)
    out = gem(batch)
    assert out.logits.shape == (rows, len(config.schema.labels))
    loss = loss_of(gem, batch)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in gem.parameters())
    assert gem.flops(batch).forward_B.shape == (rows,)


def test_a_history_matters_to_its_row_only():
    torch.manual_seed(0)
    gem, batch = Gem(TINY).eval(), random_batch(TINY.schema, 6)
    before = gem(batch).logits
    events = batch.events["clicked"]
    events.dense[events.offsets[2] : events.offsets[3]] += 3
    changed = (gem(batch).logits - before).abs().amax(1) > 1e-7
    assert changed.tolist() == [b == 2 for b in range(6)]


@contextmanager
def counting():
    """torch's count; of attention too, which it does not know of in the CPU's fused kernel."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def dense_attention(config: GemConfig) -> GemConfig:
    """With self-attention whose FLOPs a dense kernel counts in full."""
    events = (*config.events, config.event_default)
    *events, default = (replace(e, attention="full", causal=False) for e in events)
    return replace(config, events=tuple(events), event_default=default)


@settings(deadline=None, max_examples=25)
@given(config=configs(), length=st.integers(1, 9))
def test_flops_are_what_torch_counts_without_padding(config, length):
    config = dense_attention(config)
    core = GemCore(config)
    embedded = random_embedded(config, 3, length)
    with counting() as counter:
        core(embedded)
    lengths = {name: e.offsets.diff() for name, e in embedded.events.items()}
    parts = core.flops(lengths, torch.ones(3, dtype=torch.int64))
    assert sum(flops_B.sum() for flops_B in parts.values()) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["tiny", "ml100k"])
def test_flops_of_presets(name):
    config = dense_attention(GemConfig.from_name(name))
    gem = Gem(config)
    embedded = random_embedded(config, 2, 200)
    with counting() as counter:
        gem.core(embedded)
    assert gem.flops(embedded).forward == counter.get_total_flops()


def test_flops_count_actual_lengths():
    """A batch costs what its rows cost alone."""
    gem, batch = Gem(TINY), random_batch(TINY.schema, 5)
    embedded = gem.embeddings(batch)
    alone = torch.cat([gem.flops(select(embedded, b)).forward_B for b in range(5)])
    torch.testing.assert_close(gem.flops(batch).forward_B, alone)
    assert gem.flops(batch).forward_B.unique().numel() > 1


def test_flops_backward_of_torch():
    """Training FLOPs lie a little above torch's forward and backward: attention computes its logits again, and the
    first layer's inputs need a gradient."""
    config = dense_attention(TINY)
    gem = Gem(config)
    embedded = random_embedded(config, 4, 20)
    with counting() as counter:
        gem.core(embedded).logits.sum().backward()
    assert 0.9 < counter.get_total_flops() / gem.flops(embedded).training < 1.02


def test_compiles_without_graph_break():
    torch.manual_seed(0)
    gem = Gem(TINY)
    torch._dynamo.reset()
    compiled = torch.compile(gem.core, backend="eager", fullgraph=True)
    for size in (3, 6, 5):
        embedded = gem.embeddings(random_batch(TINY.schema, size))
        torch.testing.assert_close(compiled(embedded), gem.core(embedded))


def test_autocast_keeps_logits_in_fp32():
    torch.manual_seed(0)
    gem, batch = Gem(TINY), random_batch(TINY.schema, 16)
    want = gem(batch)
    with torch.autocast("cpu", torch.bfloat16):
        got = gem(batch)
    assert got.logits.dtype == torch.float32
    assert got.representation.dtype == torch.bfloat16
    torch.testing.assert_close(got.logits, want.logits, atol=0.05, rtol=0)
    multitask_bce(got.logits, batch.labels).total.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in gem.parameters())


def test_seed_and_state_dict():
    batch = random_batch(TINY.schema, 4)

    def build(seed):
        torch.manual_seed(seed)
        return Gem(TINY)

    first, again, other = build(1), build(1), build(2)
    assert torch.equal(first(batch).logits, again(batch).logits)
    assert not torch.equal(first(batch).logits, other(batch).logits)
    other.load_state_dict(first.state_dict())
    assert torch.equal(first(batch).logits, other(batch).logits)


def test_meta_has_the_same_parameters():
    shapes = [{n: p.shape for n, p in Gem(TINY, device=d).named_parameters()} for d in ("meta", "cpu")]
    assert shapes[0] == shapes[1]
    assert all(p.is_meta for p in Gem(TINY, device="meta").parameters())


def auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    ranks = scores.argsort().argsort().double() + 1
    positive = labels.sum().double()
    return ((ranks[labels > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))).item()


PLANTED = Schema(
    name="planted",
    labels=(Label("hit"),),
    sparse=(SparseColumn("item", 20, table="item"),),
    sequences=(SequenceGroup("click", ids=(SparseColumn("click_item", 20, table="item"),), max_length=8),),
)


def planted(rows: int):
    """Label: whether the row's item is in its history. Half of the rows take their history's newest item."""
    batch = random_batch(PLANTED, rows)
    offsets = batch.events["click"].offsets
    lengths = offsets.diff()
    history, items = torch.randint(20, (int(offsets[-1]),)), torch.randint(20, (rows,))
    takes = (torch.rand(rows) < 0.5) & (lengths > 0)
    items = torch.where(takes, history[(offsets[1:] - 1).clamp(min=0)], items)
    row_T = torch.repeat_interleave(torch.arange(rows), lengths)
    hits = torch.zeros(rows).index_add(0, row_T, (history == items[row_T]).float())
    ids = KeyedJaggedTensor(
        ["click_item", "item"], torch.cat([history, items]), lengths=torch.cat([lengths, torch.ones_like(lengths)])
    )
    return dataclasses.replace(batch, sequence_ids=ids, labels=(hits > 0).float()[:, None])


def test_learns_a_planted_interaction():
    """Neither the item nor the history alone says anything about the label."""
    torch.manual_seed(0)
    gem = Gem(replace(TINY, schema=PLANTED, events=()))
    optimizer = torch.optim.AdamW(gem.parameters(), lr=3e-3)
    for _ in range(160):
        optimizer.zero_grad()
        loss_of(gem, planted(256)).backward()
        optimizer.step()
    test = planted(2000)
    with torch.no_grad():
        score = auc(gem.eval()(test).logits[:, 0], test.labels[:, 0])
    assert score > 0.95
