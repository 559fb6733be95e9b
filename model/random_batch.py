"""Random inputs of a schema, for tests, examples and benchmarks: no data set needed, any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from faceter.data.batch import Batch, EventSequence
from faceter.data.schema import Schema
from faceter.model.config import GemConfig
from faceter.model.embeddings import EmbeddedBatch, EmbeddedEvents


def random_lengths(schema: Schema, batch_size: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Event type -> (B,) int64, uniform in [0, the group's max_length]."""
    return {g.name: torch.randint(0, g.max_length + 1, (batch_size,), generator=generator) for g in schema.sequences}


def random_batch(
    schema: Schema,
    batch_size: int,
    lengths: dict[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Batch:
    """A batch of uniform ids, normal numbers, ages of events up to about a week, labels of rate 1/2, on the CPU.

    Args:
        schema: of the data.
        batch_size: B.
        lengths: event type -> (B,) events of each row; None for `random_lengths`.
        generator: of the random numbers; None for torch's global one.
    """

    def integers(high: int, *size: int) -> Tensor:
        return torch.randint(0, high, size, generator=generator)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    lengths = random_lengths(schema, batch_size, generator) if lengths is None else lengths
    now = 1_700_000_000
    events, ids, id_lengths = {}, {}, {}
    for group in schema.sequences:
        lengths_B = lengths[group.name]
        total = int(lengths_B.sum())
        ages = integers(604_800, total) if group.timestamp else torch.zeros(total, dtype=torch.int64)
        events[group.name] = EventSequence(
            offsets=torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)]),
            timestamps=now - ages if group.timestamp else ages,
            dense=normal(total, len(group.dense)),
            max_length=max([1, *lengths_B.tolist()]),
        )
        for column in group.ids:
            ids[column.name], id_lengths[column.name] = integers(column.num_embeddings, total), lengths_B
    for column in schema.sparse:
        id_lengths[column.name] = integers(3, batch_size)
        ids[column.name] = integers(column.num_embeddings, int(id_lengths[column.name].sum()))

    def keyed(columns) -> KeyedJaggedTensor:
        names = [column.name for column in columns]
        empty = torch.zeros(0, dtype=torch.int64)
        return KeyedJaggedTensor(
            keys=names,
            values=torch.cat([empty, *(ids[name] for name in names)]),
            lengths=torch.cat([empty, *(id_lengths[name] for name in names)]),
            stride=batch_size,
        )

    return Batch(
        dense=normal(batch_size, len(schema.dense)),
        sparse=keyed(schema.bag_columns),
        sequence_ids=keyed(schema.row_columns),
        events=events,
        timestamps=torch.full((batch_size,), now if schema.timestamp else 0),
        labels=integers(2, batch_size, len(schema.labels)).float(),
        weights=torch.ones(batch_size),
        domains=integers(schema.num_domains, batch_size),
    )


def random_embedded(
    config: GemConfig,
    batch_size: int,
    lengths: int | dict[str, Tensor],
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> EmbeddedBatch:
    """What a model's embeddings give.

    Args:
        config: of the model.
        batch_size: B.
        lengths: event type -> (B,) events of each row, on the CPU; or one number for all rows and types (of a type with
            a smaller max_length that many).
        device: of the tensors; "meta" is possible.
        dtype: of dense values and embeddings.
    """
    schema = config.schema
    events = {}
    for group in schema.sequences:
        if isinstance(lengths, int):
            lengths_B = torch.full((batch_size,), min(lengths, group.max_length))
        else:
            lengths_B = lengths[group.name]
        total = int(lengths_B.sum())
        events[group.name] = EmbeddedEvents(
            values=torch.randn(total, config.event_width(group.name), device=device, dtype=dtype, requires_grad=True),
            offsets=torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)]).to(device),
            delta=604_800 * torch.rand(total, device=device),
            max_length=max([1, *lengths_B.tolist()]),
        )
    return EmbeddedBatch(
        dense=torch.randn(batch_size, len(schema.dense), device=device, dtype=dtype),
        sparse=torch.randn(
            batch_size, len(schema.sparse), config.embedding_dim, device=device, dtype=dtype, requires_grad=True
        ),
        events=events,
        domains=torch.randint(0, schema.num_domains, (batch_size,), device=device),
    )
