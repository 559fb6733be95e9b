"""Named configurations: `GemConfig.from_name`.

tiny         a few thousand parameters; tests and examples
ml100k       MovieLens-100K as `faceter data ml100k` converts it; trains in minutes on a CPU
h200         one 139 GiB GPU filled at batch 1024: see `h200`
h200_small   the same schema at about a tenth of the FLOPs, with small tables
"""

from __future__ import annotations

from collections.abc import Callable

from faceter.data.convert import ml100k as ml100k_data
from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn
from faceter.model.config import ConfigError, EventConfig, GemConfig, WukongConfig


def build(name: str, schema: Schema | None = None) -> GemConfig:
    """A named configuration.

    Args:
        name: see above.
        schema: of the data; None for the preset's own. Event types that the preset knows keep their configuration,
            others get `event_default`.

    Raises:
        ConfigError: no such name; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"no configuration {name!r}; there are {', '.join(PRESETS)}")
    own, fields = PRESETS[name]()
    schema = own if schema is None else schema
    groups = {group.name for group in schema.sequences}
    events = tuple(event for event in fields.pop("events") if event.name in groups)
    return GemConfig(schema=schema, events=events, **fields)


def _tiny():
    schema = Schema(
        name="tiny",
        labels=(Label("click"), Label("buy", weight=0.5)),
        dense=(DenseColumn("age"), DenseColumn("price")),
        sparse=(
            SparseColumn("user", 50),
            SparseColumn("item", 40, table="item"),
            SparseColumn("tags", 12),
        ),
        sequences=(
            SequenceGroup(
                "clicked",
                ids=(SparseColumn("clicked_item", 40, table="item"), SparseColumn("clicked_kind", 5)),
                dense=(DenseColumn("clicked_dwell"),),
                timestamp="clicked_time",
                max_length=20,
            ),
            SequenceGroup("seen", ids=(SparseColumn("seen_item", 40, table="item"),), max_length=10),
        ),
        timestamp="time",
        domain=Domain("surface", ("feed", "story", "search")),
    )
    return schema, {
        "dim": 16,
        "embedding_dim": 8,
        "dense_hidden": (16,),
        "layers": 2,
        "x_tokens": 6,
        "summary_tokens": 2,
        "pma_tokens": 1,
        "recent_tokens": 1,
        "events": (
            EventConfig("clicked", dim=16, heads=2, tokens=4, seeds=6, kron_terms=2, layers=2, window=4, pffn_tokens=4),
            EventConfig("seen", dim=8, heads=1, tokens=2, seeds=4, kron_terms=2, layers=1, window=4, pffn_tokens=4),
        ),
        "event_default": EventConfig(
            dim=16, heads=2, tokens=4, seeds=6, kron_terms=2, layers=2, window=4, pffn_tokens=4
        ),
        "wukong": WukongConfig(layers=1, fmb_tokens=3, fm_rank=4, hidden=(16,)),
        "head_hidden": (16,),
    }


def _ml100k():
    return ml100k_data.schema(), {
        "dim": 32,
        "embedding_dim": 16,
        "dense_hidden": (64,),
        "dense_tokens": 4,
        "layers": 2,
        "x_tokens": 12,
        "events": (
            EventConfig("rated", dim=32, heads=2, tokens=4, seeds=8, kron_terms=2, layers=2, window=20, pffn_tokens=8),
        ),
        "event_default": EventConfig(dim=32, heads=2, tokens=4, seeds=8, kron_terms=2, window=20, pffn_tokens=8),
        "wukong": WukongConfig(layers=1, fmb_tokens=6, fm_rank=8, hidden=(64,)),
        "head_hidden": (64,),
        "dropout": 0.2,
        "embedding_dropout": 0.2,
    }


PRESETS: dict[str, Callable[[], tuple[Schema, dict]]] = {
    "tiny": _tiny,
    "ml100k": _ml100k,
}
