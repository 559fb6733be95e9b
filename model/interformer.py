"""InterFormer (arXiv 2411.09852): sequence learning and feature interaction, interleaved and informed of each other.

With X the non-sequence tokens and S^e the sequence of event type e, layer l:

    X_sum = Gating(MLP(X_l))                             where a sequence's PFFN reads it
    S^e_{l+1} = SequenceLayer(S^e_l; X_sum)             X_sum's tokens lead the sequence as CLS tokens at layer 1
    S_sum = [Gating([CLS ‖ PMA ‖ most recent ‖ HSP])]_e of S_{l+1}
    X_{l+1} = Interaction([X_l ‖ S_sum])                 Wukong, or a mixture of Wukong experts

The summary is taken after the layer's sequence step, where the paper takes S_l's: seed pooling's tokens exist at the
first layer then, and the last sequence layer reaches the interaction. An event type with fewer layers than the model is
left as it is after its last one, and so is its summary. Without `bidirectional` neither tower sees the other before the
output (late fusion): the interaction reads X alone, and learned constants take X_sum's place in the sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faceter.data.schema import SequenceGroup
from faceter.model.config import EventConfig, GemConfig
from faceter.model.embeddings import EmbeddedEvents
from faceter.model.experts import WukongExperts
from faceter.model.flops import as_part, merge
from faceter.model.gating import Gating
from faceter.model.masknet import MaskNet
from faceter.model.mlp import MLP
from faceter.model.padding import pad_jagged
from faceter.model.sequence import SequenceLayer, SequenceSummary


class SummaryTokens(nn.Module):
    """X_sum = Gating(MLP(flatten(X))): n tokens -> `out_tokens` of the same width.

    Args:
        in_tokens: n.
        out_tokens: tokens of X_sum.
        dim: width E.
        dropout: on the MLP's hidden layer, which is as wide as its output.
    """

    def __init__(self, in_tokens: int, out_tokens: int, dim: int, dropout: float = 0.0):
        super().__init__()
        self.out_tokens, self.dim = out_tokens, dim
        self.mlp = MLP(in_tokens * dim, (out_tokens * dim,), out_tokens * dim, dropout=dropout)
        self.gating = Gating(dim)

    def forward(self, x_BNE: Tensor) -> Tensor:
        """(B, n, E) -> (B, out_tokens, E)."""
        return self.gating(self.mlp(x_BNE.flatten(1)).unflatten(-1, (self.out_tokens, self.dim)))

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: rows of each example, ones."""
        return as_part("summary", self.mlp.flops(lengths_B), self.gating.flops(lengths_B * self.out_tokens))


class EventState(NamedTuple):
    """One event type between two layers; N = CLS rows and the padded events.

    Attributes:
        s_BNE: CLS tokens, then events; rows past the length are zero.
        mask_BN: bool, True for CLS rows and events.
        delta_BN: float32 seconds to the request, 0 for CLS rows and padding.
        summary_BKE: the last seed pooling; before the first of no tokens, K = 0.
    """

    s_BNE: Tensor
    mask_BN: Tensor
    delta_BN: Tensor
    summary_BKE: Tensor


class EventTower(nn.Module):
    """All sequence layers of one event type.

    Args:
        group: the event type's columns; `max_length` is GDPA's tau.
        event: its configuration.
        in_dim: width of an event's values (`EmbeddedEvents.values`).
        config: of the model: width and number of summary tokens, MaskNet, dropout.
    """

    def __init__(self, group: SequenceGroup, event: EventConfig, in_dim: int, config: GemConfig):
        super().__init__()
        self.num_cls = config.summary_tokens
        self.num_layers = event.layers
        self.summary_tokens = config.summary_tokens + config.pma_tokens + config.recent_tokens + event.tokens
        self.embed = MaskNet(in_dim, event.dim) if config.masknet else MLP(in_dim, (), event.dim)
        self.cls = nn.Linear(config.dim, event.dim)
        self.layers = nn.ModuleList(
            SequenceLayer(event, i, config.dim, group.max_length, config.dropout, summary_tokens=config.summary_tokens)
            for i in range(event.layers)
        )
        # Late fusion reads the last layer's summary alone.
        self.first_summary = 0 if config.bidirectional else event.layers - 1
        self.summaries = nn.ModuleList(
            SequenceSummary(event, config.summary_tokens, config.pma_tokens, config.recent_tokens, config.dim)
            for _ in range(self.first_summary, event.layers)
        )
        pooled = [layer for layer in self.layers if layer.pooling is not None]
        for layer in pooled[:-1] if not config.bidirectional else ():
            layer.pooling = layer.pooling_norm = None

    def reads_summary(self, index: int) -> bool:
        """Whether layer `index` has a PFFN, whose weights are made of X_sum."""
        return index < self.num_layers and self.layers[index].pffn is not None

    def start(self, events: EmbeddedEvents, x_sum_BMC: Tensor) -> EventState:
        """Embeds and pads the events and puts X_sum's tokens before them."""
        s_BNE, mask_BN = pad_jagged(self.embed(events.values), events.offsets, events.max_length)
        delta_BN1, _ = pad_jagged(events.delta.unsqueeze(1), events.offsets, events.max_length)
        cls_BME = self.cls(x_sum_BMC)
        return EventState(
            s_BNE=torch.cat([cls_BME, s_BNE.to(cls_BME.dtype)], dim=1),
            mask_BN=F.pad(mask_BN, (self.num_cls, 0), value=True),
            delta_BN=F.pad(delta_BN1.squeeze(2), (self.num_cls, 0)),
            summary_BKE=cls_BME[:, :0],
        )

    def step(self, index: int, state: EventState, x_sum_BMC: Tensor) -> tuple[EventState, Tensor | None]:
        """Layer `index`: (next state, its summary tokens (B, summary_tokens, C), None where nobody reads them)."""
        s_BNE, summary_BKE = self.layers[index](
            state.s_BNE, state.mask_BN, x_sum_BMC, state.delta_BN, state.summary_BKE
        )
        state = state._replace(s_BNE=s_BNE, summary_BKE=summary_BKE)
        if index < self.first_summary:
            return state, None
        return state, self.summaries[index - self.first_summary](s_BNE, state.mask_BN, summary_BKE)

    def flops(self, lengths_B: Tensor) -> dict[str, Tensor]:
        """`lengths_B`: events of each example."""
        ones_B = torch.ones_like(lengths_B)
        cls_B = ones_B.double() * (2 * self.num_cls * self.cls.weight.numel())
        embed = as_part("event_embedding", self.embed.flops(lengths_B), {"cls": cls_B})
        rows_B = lengths_B + self.num_cls
        return merge(embed, *(block.flops(rows_B) for block in (*self.layers, *self.summaries)))


class InterFormer(nn.Module):
    """All layers, all event types.

    Args:
        config: of the model.
        in_tokens: non-sequence tokens X_0.

    Attributes:
        summary_tokens: tokens of S_sum, all event types together.
    """

    def __init__(self, config: GemConfig, in_tokens: int):
        super().__init__()
        self.num_layers = config.layers
        self.bidirectional = config.bidirectional
        groups = config.schema.sequences
        self.event_names = tuple(group.name for group in groups)
        self.towers = nn.ModuleList(  # not a ModuleDict: those refuse names like "update"
            EventTower(
                group,
                config.event(group.name),
                config.event_width(group.name),
                config,
            )
            for group in groups
        )
        self.summary_tokens = sum(tower.summary_tokens for tower in self.towers)

        x_tokens = [in_tokens] + [config.x_tokens] * (config.layers - 1)
        extra = self.summary_tokens if config.bidirectional else 0
        self.interactions = nn.ModuleList(
            WukongExperts(n + extra, config.x_tokens, config.dim, config.wukong, config.dropout) for n in x_tokens
        )
        # Only a layer whose PFFN reads X_sum computes one; the first does for all event types.
        self.x_summaries = nn.ModuleDict(
            {
                str(i): SummaryTokens(n, config.summary_tokens, config.dim, config.dropout)
                for i, n in enumerate(x_tokens)
                if config.bidirectional and any(tower.reads_summary(i) for tower in self.towers)
            }
        )
        self.constant_MC = (
            nn.Parameter(torch.randn(config.summary_tokens, config.dim) / config.dim**0.5)
            if groups and not config.bidirectional
            else None
        )

    def forward(self, x_BNC: Tensor, events: dict[str, EmbeddedEvents]) -> tuple[Tensor, Tensor]:
        """Interleaves the layers.

        Args:
            x_BNC: (B, in_tokens, C).
            events: one entry per event type of the schema.

        Returns:
            X after the last layer (B, x_tokens, C), and S_sum (B, summary_tokens, C).
        """
        states: dict[str, EventState] = {}
        sums: dict[str, Tensor] = {}
        x_sum_BMC = None if self.constant_MC is None else self.constant_MC.expand(x_BNC.shape[0], -1, -1)
        for i in range(self.num_layers):
            if str(i) in self.x_summaries:
                x_sum_BMC = self.x_summaries[str(i)](x_BNC)
            for name, tower in zip(self.event_names, self.towers, strict=True):
                if i == 0:
                    states[name] = tower.start(events[name], x_sum_BMC)
                if i < tower.num_layers:
                    states[name], sums[name] = tower.step(i, states[name], x_sum_BMC)
            tokens = [x_BNC, *sums.values()] if self.bidirectional else [x_BNC]
            x_BNC = self.interactions[i](torch.cat(tokens, dim=1))
        s_sum = list(sums.values())
        return x_BNC, torch.cat(s_sum, dim=1) if s_sum else x_BNC[:, :0]

    def flops(self, lengths: dict[str, Tensor], ones_B: Tensor) -> dict[str, Tensor]:
        """`lengths`: event type -> (B,) events of each example."""
        return merge(
            *(tower.flops(lengths[name]) for name, tower in zip(self.event_names, self.towers, strict=True)),
            *(summary.flops(ones_B) for summary in self.x_summaries.values()),
            *(interaction.flops(ones_B) for interaction in self.interactions),
        )
