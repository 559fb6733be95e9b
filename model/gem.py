"""A GEM-like ads model: embeddings, InterFormer over Wukong and event sequences, multi-domain multi-task heads.

    X_0 = [P e_f for each sparse feature f ‖ DenseTokens(dense)]
    X_L, S_sum = InterFormer(X_0, events)
    r = [X_sum ‖ S_sum],  X_sum = Gating(MLP(X_L)),   logits = Heads(r, domain) + Wide(e, dense) where configured

Sources: Meta Engineering, "GEM" (10 Nov 2025) for the parts; InterFormer (arXiv 2411.09852), Wukong (arXiv 2403.02545)
and Kunlun (arXiv 2602.10016) for the equations, each in the module that computes it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from faceter.data.batch import Batch
from faceter.model.config import GemConfig
from faceter.model.dense import DenseTokens
from faceter.model.embeddings import EmbeddedBatch, SparseEmbeddings
from faceter.model.flops import FlopCount, merge
from faceter.model.heads import MultiTaskHeads
from faceter.model.interformer import InterFormer, SummaryTokens
from faceter.model.wide import WideLogits


class GemOutput(NamedTuple):
    """Attributes:
    logits: (B, tasks) float32, in the schema's order of labels.
    representation: (B, R), what the heads read.
    """

    logits: Tensor
    representation: Tensor


class GemCore(nn.Module):
    """The dense part of the model: plain tensors in and out. What is compiled.

    Args:
        config: of the model.

    Attributes:
        representation_dim: R.
    """

    def __init__(self, config: GemConfig):
        super().__init__()
        schema = config.schema
        self.dense_tokens = (
            DenseTokens(len(schema.dense), config.dense_hidden, config.dense_tokens, config.dim, config.dropout)
            if schema.dense
            else None
        )
        columns = [column.name for column in schema.sparse]
        self.token_index = [columns.index(name) for name in config.token_columns]
        self.wide_index = [columns.index(name) for name in config.wide]
        self.sparse_tokens = nn.Linear(config.embedding_dim, config.dim) if self.token_index else None
        in_tokens = len(self.token_index) + (config.dense_tokens if schema.dense else 0)
        # A model of sequences alone has one learned token to start from.
        self.constant_C = nn.Parameter(torch.randn(config.dim) / config.dim**0.5) if in_tokens == 0 else None
        self.interformer = InterFormer(config, in_tokens or 1)
        self.x_summary = SummaryTokens(config.x_tokens, config.summary_tokens, config.dim, config.dropout)
        self.representation_dim = (config.summary_tokens + self.interformer.summary_tokens) * config.dim
        self.dropout = nn.Dropout(config.dropout)
        self.heads = MultiTaskHeads(
            self.representation_dim, config.head_hidden, len(schema.labels), schema.num_domains, config.dropout
        )
        self.wide = (
            WideLogits(len(config.wide), config.embedding_dim, len(schema.dense), len(schema.labels))
            if config.wide
            else None
        )

    def forward(self, embedded: EmbeddedBatch) -> GemOutput:
        tokens = []
        if self.sparse_tokens is not None:
            tokens.append(self.sparse_tokens(embedded.sparse[:, self.token_index]))
        if self.dense_tokens is not None:
            tokens.append(self.dense_tokens(embedded.dense))
        if self.constant_C is not None:
            tokens.append(self.constant_C.expand(embedded.domains.shape[0], 1, -1))
        x_BNC, s_sum_BMC = self.interformer(torch.cat(tokens, dim=1), embedded.events)
        representation_BR = torch.cat([self.x_summary(x_BNC), s_sum_BMC], dim=1).flatten(1)
        logits_BT = self.heads(self.dropout(representation_BR), embedded.domains)
        if self.wide is not None:
            logits_BT = logits_BT + self.wide(embedded.sparse[:, self.wide_index], embedded.dense)
        return GemOutput(logits_BT, representation_BR)

    def flops(self, lengths: dict[str, Tensor], ones_B: Tensor) -> dict[str, Tensor]:
        """Part name -> (B,) forward FLOPs.

        Args:
            lengths: event type -> (B,) events of each example.
            ones_B: (B,) ones.
        """
        counts = [self.interformer.flops(lengths, ones_B), self.x_summary.flops(ones_B), self.heads.flops(ones_B)]
        if self.sparse_tokens is not None:
            projection = 2 * len(self.token_index) * self.sparse_tokens.weight.numel()
            counts.append({"sparse_tokens": ones_B.double() * projection})
        if self.dense_tokens is not None:
            counts.append(self.dense_tokens.flops(ones_B))
        return merge(*counts)


class Gem(nn.Module):
    """The whole model.

    Args:
        config: what to build; see `GemConfig.from_name` for named ones.
        device: of parameters, default torch's default device; "meta" allocates none.

    Attributes:
        embeddings: SparseEmbeddings, Batch -> EmbeddedBatch.
        core: GemCore, EmbeddedBatch -> GemOutput.
    """

    def __init__(self, config: GemConfig, device: torch.device | str | None = None):
        super().__init__()
        self.config = config
        device = torch.get_default_device() if device is None else torch.device(device)
        self.embeddings = SparseEmbeddings(
            config.schema,
            config.embedding_dim,
            config.embedding_dropout,
            device,
            config.embedding_std,
            {group.name: config.event_ids(group.name) for group in config.schema.sequences},
        )
        with device:
            self.core = GemCore(config)

    def forward(self, batch: Batch) -> GemOutput:
        return self.core(self.embeddings(batch))

    def flops(self, batch: Batch | EmbeddedBatch) -> FlopCount:
        """Matrix multiplication FLOPs of a batch's forward, on its actual lengths; embedding lookups have none."""
        lengths = {name: events.offsets.diff() for name, events in batch.events.items()}
        ones_B = torch.ones_like(batch.domains)
        return FlopCount(self.core.flops(lengths, ones_B))
