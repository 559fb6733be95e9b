"""Sparse embeddings: ids in, plain tensors out (torchrec inside).

Non-sequence ids are summed per row and feature, e_f = sum over i of E_f[id_i], by an EmbeddingBagCollection. Ids of
event sequences are looked up one by one by an EmbeddingCollection; a non-sequence column that shares a table with a
sequence (the ad that is shown, and the ads clicked before) is looked up there too and summed here.
Embedding tables are the model's sparse parameters (Wukong, arXiv 2403.02545, section 3.2; InterFormer,
arXiv 2411.09852, section 3).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from faceter.data.batch import Batch
from faceter.data.schema import Schema


def table_key(table: str) -> str:
    """The name under which torchrec keeps a table: its module containers refuse names such as `items` and `a.b`."""
    return "table_" + table.replace("%", "%25").replace(".", "%2E")


class EmbeddedEvents(NamedTuple):
    """One event type, jagged: T events of B rows, oldest first.

    Attributes:
        values: (T, k * D + K) float; the event's k embeddings of width D, then its K numbers, each in schema order.
        offsets: (B + 1,) int64.
        delta: (T,) float32 seconds from the event to the request, at least 0.
        max_length: Python int, at least the longest row's length.
    """

    values: Tensor
    offsets: Tensor
    delta: Tensor
    max_length: int


class EmbeddedBatch(NamedTuple):
    """What the dense part of the model reads: plain tensors only.

    Attributes:
        dense: (B, n) float32.
        sparse: (B, F, D) float; one embedding for each non-sequence id column, in schema order.
        events: event type -> EmbeddedEvents.
        domains: (B,) int64.
    """

    dense: Tensor
    sparse: Tensor
    events: dict[str, EmbeddedEvents]
    domains: Tensor


class SparseEmbeddings(nn.Module):
    """All embedding tables of a schema.

    Args:
        schema: names the tables and the columns that read them.
        embedding_dim: D, the same for all tables.
        dropout: rate at which embeddings are dropped in training: a whole embedding of a (row, column) or of an
            (event, column) is zeroed, the others are scaled by 1 / (1 - dropout).
        device: where the tables live, default torch's default device; "meta" is possible.
        std: standard deviation of their numbers at the start.
        event_ids: event type -> the id columns in its `EmbeddedEvents.values`; all for a type that is not named.

    Attributes:
        ebc: EmbeddingBagCollection of the tables that no sequence reads, or None.
        ec: EmbeddingCollection of the tables that some sequence reads, or None.
    """

    def __init__(
        self,
        schema: Schema,
        embedding_dim: int,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        std: float = 0.1,
        event_ids: dict[str, tuple[str, ...]] | None = None,
    ):
        super().__init__()
        self.schema = schema
        self.embedding_dim = embedding_dim
        self.dropout = dropout
        self.event_ids = {g.name: tuple(c.name for c in g.ids) for g in schema.sequences} | (event_ids or {})
        device = torch.get_default_device() if device is None else torch.device(device)
        init = partial(nn.init.normal_, std=std)

        def tables(columns, config, **kwargs):
            features: dict[str, list[str]] = {}
            for column in columns:
                features.setdefault(column.table_name, []).append(column.name)
            return [
                config(
                    name=table_key(table),
                    embedding_dim=embedding_dim,
                    num_embeddings=schema.tables[table],
                    feature_names=names,
                    init_fn=init,
                    **kwargs,
                )
                for table, names in features.items()
            ]

        bags = tables(schema.bag_columns, EmbeddingBagConfig)  # torchrec pools by sum unless told otherwise
        rows = tables(schema.row_columns, EmbeddingConfig)
        self.ebc = EmbeddingBagCollection(tables=bags, device=device) if bags else None
        self.ec = EmbeddingCollection(tables=rows, device=device) if rows else None

    def forward(self, batch: Batch) -> EmbeddedBatch:
        """Looks all ids up.

        Args:
            batch: of the schema's columns; an empty one (B = 0) is possible when the tables are not sharded.

        Returns:
            EmbeddedBatch on the batch's device.
        """
        bags = self._bags(batch.sparse, batch.batch_size)
        rows = self._rows(batch.sequence_ids)
        sparse = [
            bags[column.name] if column.name in bags else self._pool(*rows[column.name])
            for column in self.schema.sparse
        ]
        sparse_BFD = torch.stack(sparse, dim=1) if sparse else batch.dense.new_zeros(batch.batch_size, 0, 1)
        return EmbeddedBatch(
            dense=batch.dense,
            sparse=self._drop(sparse_BFD),
            events={group.name: self._events(group, batch, rows) for group in self.schema.sequences},
            domains=batch.domains,
        )

    def _bags(self, ids: KeyedJaggedTensor, batch_size: int) -> dict[str, Tensor]:
        """Column -> (B, D)."""
        if self.ebc is None:
            return {}
        if batch_size == 0:  # torchrec can't tell a batch size of 0
            zeros = next(self.ebc.parameters()).new_zeros(0, self.embedding_dim)
            return {column.name: zeros for column in self.schema.bag_columns}
        return self.ebc(ids).to_dict()

    def _rows(self, ids: KeyedJaggedTensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Column -> (T, D) embeddings and (B + 1,) offsets."""
        if self.ec is None:
            return {}
        if ids.lengths().numel() == 0:
            zeros = next(self.ec.parameters()).new_zeros(0, self.embedding_dim)
            offsets = torch.zeros(1, dtype=torch.int64, device=zeros.device)
            return {column.name: (zeros, offsets) for column in self.schema.row_columns}
        embedded = self.ec(ids)
        return {c.name: (embedded[c.name].values(), embedded[c.name].offsets()) for c in self.schema.row_columns}

    def _pool(self, values_TD: Tensor, offsets: Tensor) -> Tensor:
        """(B, D): sum over each row's ids, zero for a row without one."""
        return torch.segment_reduce(values_TD, "sum", offsets=offsets.long(), axis=0, initial=0)

    def _drop(self, values: Tensor) -> Tensor:
        """Zeroes whole vectors of the last axis."""
        if not self.training or self.dropout == 0:
            return values
        keep = torch.empty(values.shape[:-1], device=values.device, dtype=values.dtype).bernoulli_(1 - self.dropout)
        return values * (keep / (1 - self.dropout)).unsqueeze(-1)

    def _events(self, group, batch: Batch, rows: dict[str, tuple[Tensor, Tensor]]) -> EmbeddedEvents:
        events = batch.events[group.name]
        ids_TKD = torch.stack([rows[name][0] for name in self.event_ids[group.name]], dim=1)
        total = ids_TKD.shape[0]
        request_T = torch.repeat_interleave(batch.timestamps, events.offsets.diff(), output_size=total)
        delta_T = (request_T - events.timestamps).clamp(min=0).float()  # exact in int64, rounded only here
        return EmbeddedEvents(
            values=torch.cat([self._drop(ids_TKD).flatten(1), events.dense], dim=1),
            offsets=events.offsets,
            delta=delta_T if group.timestamp else torch.zeros_like(delta_T),
            max_length=events.max_length,
        )
