"""What a step of training reads: one batch, jagged, without padding."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass
class EventSequence:
    """One event type of a batch, jagged: T events of B rows, oldest first in each row.

    The events' ids are in `Batch.sequence_ids` under the group's id columns, with the same lengths.

    Attributes:
        offsets: (B + 1,) int64; row b's events are [offsets[b], offsets[b + 1]).
        timestamps: (T,) int64, seconds; zeros if the group has no timestamps.
        dense: (T, K) float32, K = number of the group's dense columns (may be 0), already normalised.
        max_length: Python int, at least the longest row's length, at least 1.
    """

    offsets: Tensor
    timestamps: Tensor
    dense: Tensor
    max_length: int


@dataclass
class Batch:
    """B rows. Column orders are the schema's.

    Attributes:
        dense: (B, number of dense columns) float32, already normalised.
        sparse: KeyedJaggedTensor, keys = names of `Schema.bag_columns`, int64 values.
        sequence_ids: KeyedJaggedTensor, keys = names of `Schema.row_columns`, int64 values.
        events: event type -> EventSequence.
        timestamps: (B,) int64, seconds; zeros if the schema has none.
        labels: (B, tasks) float32 in [0, 1].
        weights: (B,) float32; ones if the schema has none.
        domains: (B,) int64 in [0, num_domains).
    """

    dense: Tensor
    sparse: KeyedJaggedTensor
    sequence_ids: KeyedJaggedTensor
    events: dict[str, EventSequence]
    timestamps: Tensor
    labels: Tensor
    weights: Tensor
    domains: Tensor

    @property
    def batch_size(self) -> int:
        return self.labels.shape[0]

    def _map(self, fn) -> Batch:
        def walk(value):
            if isinstance(value, dict):
                return {k: walk(v) for k, v in value.items()}
            if isinstance(value, EventSequence):
                return EventSequence(**{f.name: walk(getattr(value, f.name)) for f in dataclasses.fields(value)})
            return value if isinstance(value, int) else fn(value)

        return Batch(**{f.name: walk(getattr(self, f.name)) for f in dataclasses.fields(self)})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """A copy on `device`."""
        device = torch.device(device)
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """A copy in pinned host memory."""
        return self._map(lambda t: t.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that `stream` uses these tensors (torchrec's pipelines call it)."""
        self._map(lambda t: t.record_stream(stream) or t)
