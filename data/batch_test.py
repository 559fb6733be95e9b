import torch

from faceter.data.reader import ParquetReader
from faceter.data.schema import Label, Schema
from faceter.data.testing_tables import full_schema, full_table, write


def _tensors(batch):
    yield from (batch.dense, batch.timestamps, batch.labels, batch.weights, batch.domains)
    for kjt in (batch.sparse, batch.sequence_ids):
        yield from (kjt.values(), kjt.lengths())
    for event in batch.events.values():
        yield from (event.offsets, event.timestamps, event.dense)


def test_moves_every_tensor_and_keeps_the_rest(tmp_path):
    write(tmp_path, full_table(6))
    (batch,) = ParquetReader(tmp_path, full_schema(), 8).epoch()
    moved = batch.to("meta")
    assert {t.device.type for t in _tensors(moved)} == {"meta"}
    assert moved.batch_size == 6
    assert moved.sparse.keys() == batch.sparse.keys()
    assert moved.sparse.stride() == 6
    assert moved.sparse.length_per_key() == batch.sparse.length_per_key()
    assert moved.events["click"].max_length == batch.events["click"].max_length
    assert all(a.shape == b.shape for a, b in zip(_tensors(batch), _tensors(moved), strict=True))


def test_no_keys_at_all(tmp_path):
    write(tmp_path, full_table(6))
    (batch,) = ParquetReader(tmp_path, Schema("s", (Label("click"),)), 8).epoch()
    moved = batch.to(torch.device("cpu"))
    assert moved.sparse.keys() == moved.sequence_ids.keys() == []
    assert moved.dense.shape == (6, 0)
    assert moved.weights.tolist() == [1.0] * 6
