"""Configuration of the GEM model: dataclasses, checked when they are made.

Sources: InterFormer (arXiv 2411.09852), Wukong (arXiv 2403.02545), Kunlun (arXiv 2602.10016).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from faceter.data.schema import Schema

Activation = Literal["gelu", "gelu_tanh", "silu", "relu", "relu2", "leaky_relu", "hardswish", "identity"]


class ConfigError(ValueError):
    """A configuration that no model can be built from; the message names the field and the remedy."""


def _positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{owner}: {name} must be positive, is {value}")


def _not_negative(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ConfigError(f"{owner}: {name} must be at least 0, is {value}")


def _widths(owner: str, **values: tuple[int, ...]) -> None:
    for name, widths in values.items():
        if any(width < 1 for width in widths):
            raise ConfigError(f"{owner}: {name} must be positive widths, is {widths}")


def _rate(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ConfigError(f"{owner}: {name} must be in [0, 1), is {value}")


@dataclass(frozen=True)
class EventConfig:
    """What one event type gets of the sequence tower (Kunlun's event-level personalisation).

    Args:
        name: the schema's sequence group.
        ids: id columns of the group that the model reads; empty for all.
        dim: width E of the event's tokens; heads divide it.
        heads: attention heads, of self-attention and GDPA alike.
        tokens: summary tokens that seed pooling gives (n_tokens).
        seeds: learnable seeds of hierarchical seed pooling (n_seeds).
        kron_terms: terms of SumKronLinear.
        layers: sequence layers, at most the model's; after them the sequence and its summary stay as they are.
        attention: self-attention per feature group: over the whole history, keys within `window` positions to either
            side, or inside fixed blocks of 64 rows.
        window: half width of the sliding window, in events.
        causal: a position attends to itself and earlier ones only.
        position: rotary embedding by position ("rope"), by time to the request ("rote"), both (half of each head's
            dims each), or none.
        time_scale: t_scale of ROTE, seconds.
        activations: GDPA's activation per head, repeated cyclically.
        pffn_tokens: rows of K and V that GDPA-PFFN makes of X_sum, per example.
        scale_inside: divide GDPA's logits by tau = max_length inside the activation instead of the result outside.
        qk_norm: normalise GDPA's q and k per head first, so that logits are bounded.
        comp_skip: even layers skip self-attention (GDPA-PFFN and a fresh HSP), odd layers skip GDPA-PFFN and reuse
            the last HSP. Off: every layer has all three.
    """

    name: str = "default"
    ids: tuple[str, ...] = ()
    dim: int = 64
    heads: int = 4
    tokens: int = 8
    seeds: int = 16
    kron_terms: int = 4
    layers: int = 2
    attention: Literal["full", "window", "block"] = "window"
    window: int = 50
    causal: bool = False
    position: Literal["none", "rope", "rote", "both"] = "both"
    time_scale: float = 3600.0
    activations: tuple[Activation, ...] = ("gelu", "silu")
    pffn_tokens: int = 16
    scale_inside: bool = False
    qk_norm: bool = False
    comp_skip: bool = True

    def __post_init__(self):
        owner = f"event {self.name!r}"
        _positive(
            owner,
            dim=self.dim,
            heads=self.heads,
            tokens=self.tokens,
            seeds=self.seeds,
            kron_terms=self.kron_terms,
            layers=self.layers,
            window=self.window,
            time_scale=self.time_scale,
            pffn_tokens=self.pffn_tokens,
        )
        if self.dim % self.heads:
            raise ConfigError(f"{owner}: heads = {self.heads} does not divide dim = {self.dim}")
        head_dim = self.dim // self.heads
        need = {"none": 1, "rope": 2, "rote": 2, "both": 4}[self.position]
        if head_dim % need:
            raise ConfigError(
                f"{owner}: position {self.position!r} needs a head dim divisible by {need}, is {head_dim}"
            )
        if not self.activations:
            raise ConfigError(f"{owner}: activations is empty; name one, for example gelu")


@dataclass(frozen=True)
class WukongConfig:
    """One Wukong stack (arXiv 2403.02545): X_{l+1} = LN(concat(FMB(X), LCB(X)) + X).

    Args:
        layers: Wukong layers per InterFormer layer.
        fmb_tokens: tokens that the factorisation machine block gives; the linear compression block gives the rest.
        fm_rank: k of the low-rank FM X (X^T Y), Y (n x k); 0 for the exact X X^T.
        hidden: widths of the FMB's MLP.
        experts: Wukong experts, each on its part of the tokens (mixture by feature partition); 1 = a single stack.
    """

    layers: int = 1
    fmb_tokens: int = 8
    fm_rank: int = 8
    hidden: tuple[int, ...] = (128,)
    experts: int = 1

    def __post_init__(self):
        _positive("wukong", layers=self.layers, fmb_tokens=self.fmb_tokens, experts=self.experts)
        _not_negative("wukong", fm_rank=self.fm_rank)
        _widths("wukong", hidden=self.hidden)


@dataclass(frozen=True)
class GemConfig:
    """The whole model.

    Args:
        schema: what is in the data.
        dim: width E of non-sequence tokens and of the summaries.
        embedding_dim: width of embedding tables.
        embedding_std: standard deviation of their numbers at the start. Products of two embeddings are what the model
            learns from: if much smaller, they start near a saddle that takes hundreds of steps to leave; if much
            larger, an id that is seen a few times is mostly noise.
        dense_hidden: widths of the dense features' MLP; it ends in `dense_tokens` tokens of width `dim`.
        dense_tokens: tokens that all dense features together become.
        layers: InterFormer layers (sequence learning and feature interaction interleaved).
        x_tokens: non-sequence tokens after the first layer (of Wukong, and of its output).
        summary_tokens: tokens of X_sum (Gating(MLP(X))); they lead the sequences as CLS tokens at layer 1.
        pma_tokens: tokens of pooling by multi-head attention in S_sum; 0 for none.
        recent_tokens: newest events in S_sum; 0 for none.
        events: one entry per event type; `event_default` serves the groups without one.
        masknet: MaskNet over the aligned sequences' concatenated embeddings; off: a linear map.
        bidirectional: S_sum goes into the interaction and X_sum into the sequences. Off: late fusion (ablation).
        head_hidden: widths of each task's MLP; empty for linear heads.
        wide: id columns whose embeddings also reach the logits by a shallow factorisation machine, together with a
            linear map of the dense features (see `faceter.model.wide`); empty for none.
        wide_only: those columns are no tokens of the rest of the model.
        dropout: on tower outputs and MLP hidden layers.
        embedding_dropout: on looked-up embeddings, whole ids at a time.
    """

    schema: Schema
    dim: int = 64
    embedding_dim: int = 32
    embedding_std: float = 0.1
    dense_hidden: tuple[int, ...] = (64,)
    dense_tokens: int = 2
    layers: int = 2
    x_tokens: int = 16
    summary_tokens: int = 4
    pma_tokens: int = 2
    recent_tokens: int = 2
    events: tuple[EventConfig, ...] = ()
    event_default: EventConfig = field(default_factory=EventConfig)
    wukong: WukongConfig = field(default_factory=WukongConfig)
    masknet: bool = True
    bidirectional: bool = True
    head_hidden: tuple[int, ...] = (64,)
    wide: tuple[str, ...] = ()
    wide_only: bool = False
    dropout: float = 0.0
    embedding_dropout: float = 0.0

    def __post_init__(self):
        _positive(
            "gem",
            dim=self.dim,
            embedding_dim=self.embedding_dim,
            embedding_std=self.embedding_std,
            dense_tokens=self.dense_tokens,
            layers=self.layers,
            x_tokens=self.x_tokens,
            summary_tokens=self.summary_tokens,
        )
        _not_negative("gem", pma_tokens=self.pma_tokens, recent_tokens=self.recent_tokens)
        _widths("gem", dense_hidden=self.dense_hidden, head_hidden=self.head_hidden)
        _rate("gem", dropout=self.dropout, embedding_dropout=self.embedding_dropout)
        groups = [g.name for g in self.schema.sequences]
        for event in self.events:
            if event.name not in groups:
                raise ConfigError(
                    f"events: {event.name!r} is no sequence group of schema {self.schema.name!r} (it has {groups})"
                )
        if len({e.name for e in self.events}) != len(self.events):
            raise ConfigError(f"events: an event type is named twice: {[e.name for e in self.events]}")
        for event in map(self.event, groups):
            if event.layers > self.layers:
                raise ConfigError(
                    f"event {event.name!r}: layers = {event.layers} is more than the model's layers = {self.layers}"
                )
            columns = [c.name for g in self.schema.sequences if g.name == event.name for c in g.ids]
            if unknown := [name for name in event.ids if name not in columns]:
                raise ConfigError(f"event {event.name!r}: ids {unknown} are no id columns of it (it has {columns})")
        if unknown := [name for name in self.wide if name not in {c.name for c in self.schema.sparse}]:
            raise ConfigError(f"wide: {unknown} are no sparse columns of schema {self.schema.name!r}")
        if not (self.schema.dense or self.schema.sparse or groups):
            raise ConfigError(f"schema {self.schema.name!r} has no feature: name a dense, sparse or sequence column")
        if self.wukong.fmb_tokens >= self.x_tokens:
            raise ConfigError(
                f"wukong.fmb_tokens = {self.wukong.fmb_tokens} must be less than x_tokens = {self.x_tokens}: "
                "the linear compression block gives the difference"
            )

    @property
    def token_columns(self) -> tuple[str, ...]:
        """Sparse columns that become tokens, in schema order."""
        return tuple(c.name for c in self.schema.sparse if not (self.wide_only and c.name in self.wide))

    def event_ids(self, name: str) -> tuple[str, ...]:
        """Id columns of an event type that the model reads, in schema order."""
        (group,) = (g for g in self.schema.sequences if g.name == name)
        chosen = self.event(name).ids
        return tuple(c.name for c in group.ids if not chosen or c.name in chosen)

    def event_width(self, name: str) -> int:
        """Width of an event's values: its embeddings and its numbers."""
        (group,) = (g for g in self.schema.sequences if g.name == name)
        return len(self.event_ids(name)) * self.embedding_dim + len(group.dense)

    def event(self, name: str) -> EventConfig:
        """The configuration of one event type."""
        return next((e for e in self.events if e.name == name), replace(self.event_default, name=name))

    @classmethod
    def from_name(cls, name: str, schema: Schema | None = None) -> GemConfig:
        """A named configuration (see `faceter.model.presets`), on its own schema or on the one given.

        Raises:
            ConfigError: no such name; the message lists those there are.
        """
        from faceter.model.presets import build

        return build(name, schema)
