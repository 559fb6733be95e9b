from itertools import pairwise

import pytest
import torch

from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn
from faceter.model.embeddings import SparseEmbeddings, table_key
from faceter.model.random_batch import random_batch

D = 6


def schema(timestamp: bool = True) -> Schema:
    return Schema(
        name="test",
        labels=(Label("y"),),
        dense=(DenseColumn("a"),),
        sparse=(
            SparseColumn("item", 30, table="items"),
            SparseColumn("user", 20),
            SparseColumn("tags", 9, table="words"),
            SparseColumn("title", 9, table="words"),
            SparseColumn("a.b", 3),
        ),
        sequences=(
            SequenceGroup(
                "click",
                ids=(SparseColumn("click_item", 30, table="items"), SparseColumn("click_kind", 4)),
                dense=(DenseColumn("dwell"), DenseColumn("position")),
                timestamp="click_time" if timestamp else None,
                max_length=7,
            ),
            SequenceGroup("view", ids=(SparseColumn("view_item", 30, table="items"),), max_length=5),
        ),
        timestamp="time",
    )


def tables(embeddings: SparseEmbeddings) -> dict[str, torch.Tensor]:
    state = embeddings.state_dict()
    return {
        name: value for key, value in state.items() for name in schema().tables if key.split(".")[-2] == table_key(name)
    }


def ids_of(kjt, key):
    jagged = kjt[key]
    offsets = jagged.offsets().tolist()
    return [jagged.values()[a:b] for a, b in pairwise(offsets)]


def test_tables_are_the_schema_s():
    got = {name: tuple(table.shape) for name, table in tables(SparseEmbeddings(schema(), D)).items()}
    assert got == {name: (rows, D) for name, rows in schema().tables.items()}


def test_lookups_are_plain_indexing():
    embeddings, batch = SparseEmbeddings(schema(), D), random_batch(schema(), 8)
    table, out = tables(embeddings), embeddings(batch)
    assert out.sparse.shape == (8, 5, D)
    for f, column in enumerate(schema().sparse):
        kjt = batch.sparse if column.name in batch.sparse.keys() else batch.sequence_ids  # noqa: SIM118  a KJT is no dict
        for b, ids in enumerate(ids_of(kjt, column.name)):
            torch.testing.assert_close(out.sparse[b, f], table[column.table_name][ids].sum(0))
    for group in schema().sequences:
        wants = [table[c.table_name][batch.sequence_ids[c.name].values()] for c in group.ids]
        events = out.events[group.name]
        torch.testing.assert_close(events.values, torch.cat([*wants, batch.events[group.name].dense], 1))
        assert torch.equal(events.offsets, batch.events[group.name].offsets)
        assert events.max_length == batch.events[group.name].max_length
    assert out.dense is batch.dense
    assert out.domains is batch.domains


def test_gradients_of_a_shared_table_add_up():
    embeddings, batch = SparseEmbeddings(schema(), D), random_batch(schema(), 8)
    out = embeddings(batch)
    (out.sparse[:, 0].sum() + out.events["click"].values[:, :D].sum()).backward()
    grads = {name: p.grad for name, p in embeddings.named_parameters() if p.grad is not None and p.grad.any()}
    ids = torch.cat([batch.sequence_ids[key].values() for key in ("item", "click_item")])
    (grad,) = grads.values()
    torch.testing.assert_close(grad, torch.bincount(ids, minlength=30)[:, None].expand(-1, D).float())


def test_delta_is_seconds_to_the_request():
    batch = random_batch(schema(), 4, {"click": torch.tensor([2, 0, 1, 3]), "view": torch.tensor([1, 1, 1, 1])})
    batch.timestamps = torch.tensor([1_700_000_000, 5, 1_700_000_100, 10])
    batch.events["click"].timestamps = torch.tensor([1_699_999_999, 1_700_000_000, 1_699_000_000, 7, 10, 12])
    out = SparseEmbeddings(schema(), D)(batch)
    assert out.events["click"].delta.tolist() == [1, 0, 1_000_100, 3, 0, 0]  # an event after the request: 0
    assert out.events["click"].delta.dtype == torch.float32
    assert not out.events["view"].delta.any()


def test_group_without_timestamps_has_no_delta():
    batch = random_batch(schema(timestamp=False), 4)
    assert not SparseEmbeddings(schema(timestamp=False), D)(batch).events["click"].delta.any()


@pytest.mark.parametrize("batch_size", [0, 3])
def test_no_rows_and_no_events(batch_size):
    zeros = torch.zeros(batch_size, dtype=torch.int64)
    out = SparseEmbeddings(schema(), D)(random_batch(schema(), batch_size, {"click": zeros, "view": zeros}))
    assert out.sparse.shape == (batch_size, 5, D)
    assert out.events["click"].values.shape == (0, 2 * D + 2)
    assert out.events["click"].offsets.tolist() == [0] * (batch_size + 1)


def test_schema_without_ids_in_either_collection():
    bags = Schema("s", (Label("y"),), sparse=(SparseColumn("user", 5),))
    out = SparseEmbeddings(bags, D)(random_batch(bags, 3))
    assert out.sparse.shape == (3, 1, D)
    assert out.events == {}
    dense = Schema("s", (Label("y"),), dense=(DenseColumn("a"),))
    assert SparseEmbeddings(dense, D)(random_batch(dense, 3)).sparse.shape[:2] == (3, 0)


def test_dropout_drops_whole_ids():
    torch.manual_seed(0)
    embeddings, batch = SparseEmbeddings(schema(), D, dropout=0.25), random_batch(schema(), 500)
    dropped = embeddings(batch).events["click"].values[:, : 2 * D].unflatten(1, (2, D))
    kept = embeddings.eval()(batch).events["click"].values[:, : 2 * D].unflatten(1, (2, D))
    zero = (dropped == 0).all(-1)
    torch.testing.assert_close(dropped, torch.where(zero[..., None], 0, kept / 0.75))
    assert abs(zero.float().mean() - 0.25) < 0.03
    assert (zero[:, 0] != zero[:, 1]).any()
    embeddings.train()
    sparse = embeddings(batch).sparse
    assert ((sparse == 0).all(-1) == (sparse == 0).any(-1)).all()


def test_seed_and_meta():
    def build(device=None):
        torch.manual_seed(3)
        return SparseEmbeddings(schema(), D, device=device).state_dict()

    first, second, meta = build(), build(), build("meta")
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(value.is_meta for value in meta.values())
    assert meta.keys() == first.keys()
