"""Named configurations: `GemConfig.from_name`.

tiny         a few thousand parameters; tests and examples
ml100k       MovieLens-100K as `faceter data ml100k` converts it; trains in minutes on a CPU
h200         one 139 GiB GPU filled at batch 1024: see `h200`
h200_small   the same schema at about a tenth of the FLOPs, with small tables
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn
from faceter.model.config import ConfigError, EventConfig, GemConfig, WukongConfig


def build(name: str, schema: Schema | None = None) -> GemConfig:
    """A named configuration.

    Args:
        name: see above.
        schema: of the data; None for the preset's own. Event types that the preset knows keep their configuration,
            others get `event_default`; of the preset's wide columns those remain that the schema has.

    Raises:
        ConfigError: no such name; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"no configuration {name!r}; there are {', '.join(PRESETS)}")
    own, fields = PRESETS[name]()
    schema = own if schema is None else schema
    groups = {group.name for group in schema.sequences}
    events = tuple(event for event in fields.pop("events") if event.name in groups)
    columns = {column.name for column in schema.sparse}
    wide = tuple(name for name in fields.pop("wide", ()) if name in columns)
    return GemConfig(schema=schema, events=events, wide=wide, **fields)


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
    from faceter.data.convert import ml100k  # here, because it needs pyarrow and the other presets don't

    event = EventConfig("rated", dim=32, heads=2, tokens=4, seeds=8, kron_terms=2, layers=2, window=20, pffn_tokens=8)
    return ml100k.schema(), {
        "dim": 32,
        "embedding_dim": 16,
        "embedding_std": 0.05,
        "dense_hidden": (64,),
        "dense_tokens": 4,
        "layers": 2,
        "x_tokens": 12,
        "pma_tokens": 0,
        # An item has about 50 ratings: too few for its embedding as a past event. Genres and years generalise.
        "events": (replace(event, ids=("rated_rating", "rated_genre_set", "rated_year")),),
        "event_default": event,
        "wukong": WukongConfig(layers=1, fmb_tokens=6, fm_rank=0, hidden=(64,)),
        "head_hidden": (64,),
        "wide": ("user_id", "item_id"),
        "wide_only": True,
        "dropout": 0.2,
        "embedding_dropout": 0.2,
    }


# A few tables are large, most are small, as in ads data.
_H200_TABLES = {"user": 12_000_000, "item": 16_000_000, "campaign": 2_000_000, "advertiser": 1_000_000}


def _h200_schema(shrink: int = 1) -> Schema:
    """About 200 non-sequence ids, 64 numbers, three event types of up to 2,000 events, three tasks, four surfaces.

    Args:
        shrink: divides the number of rows of each table.
    """

    def column(name: str, rows: int, table: str | None = None) -> SparseColumn:
        return SparseColumn(name, max(rows // shrink, 16), table)

    def shared(prefix: str, *tables: str) -> tuple[SparseColumn, ...]:
        return tuple(column(f"{prefix}_{table}", _H200_TABLES[table], table) for table in tables)

    # From 500,000 rows down to a few hundred.
    rest = tuple(column(f"id_{i}", int(500_000 * 0.955**i) + 100) for i in range(186))
    return Schema(
        name="h200",
        labels=(Label("click"), Label("conversion"), Label("dwell", weight=0.3)),
        dense=tuple(DenseColumn(f"number_{i}", log1p=True) for i in range(64)),
        sparse=shared("ad", "item", "campaign", "advertiser") + shared("request", "user") + rest,
        sequences=(
            SequenceGroup(
                "click",
                ids=(*shared("click", "item", "campaign", "advertiser"), column("click_surface", 64)),
                dense=(DenseColumn("click_dwell", log1p=True),),
                timestamp="click_time",
                max_length=2000,
            ),
            SequenceGroup(
                "impression",
                ids=(*shared("impression", "item", "advertiser"), column("impression_surface", 64)),
                timestamp="impression_time",
                max_length=500,
            ),
            SequenceGroup(
                "conversion",
                ids=(*shared("conversion", "item", "campaign", "advertiser"), column("conversion_kind", 256)),
                dense=(DenseColumn("conversion_value", log1p=True),),
                timestamp="conversion_time",
                max_length=128,
            ),
        ),
        timestamp="time",
        domain=Domain("surface", ("feed", "reels", "stories", "search")),
    )


def _h200():
    """Fills one 139 GiB GPU in training at batch 1024 in bf16 autocast, histories uniform in [0, max_length].

    12 GFLOP forward per example at half of the maximum lengths. The arithmetic, in GiB (2^30):

        tables            42 million rows x 128 x 4 bytes                              20.1
        rowwise AdaGrad   one float32 per row                                           0.2
        dense             1.29 billion parameters: fp32, gradient and two moments      19.2
        saved activations 1024 x 67 MiB in bf16 (SDPA's mask and fp32 norms come on top)  67

    Each (B, N, E) tensor of clicks is 1 GiB in bf16, and a layer of the plain model saves about ten of them.
    """
    return _h200_schema(), {
        "dim": 256,
        "embedding_dim": 128,
        "dense_hidden": (1024,),
        "dense_tokens": 8,
        "layers": 4,
        "x_tokens": 96,
        "events": (
            EventConfig(
                "click", dim=256, heads=8, tokens=32, seeds=512, kron_terms=8, layers=3, window=100, pffn_tokens=32
            ),
            EventConfig(
                "impression", dim=128, heads=4, tokens=16, seeds=64, kron_terms=4, layers=2, window=50, pffn_tokens=32
            ),
            EventConfig(
                "conversion",
                dim=1024,
                heads=8,
                tokens=32,
                seeds=256,
                kron_terms=8,
                layers=3,
                window=100,
                pffn_tokens=64,
            ),
        ),
        "wukong": WukongConfig(layers=2, fmb_tokens=48, fm_rank=64, hidden=(4096,), experts=2),
        "head_hidden": (1024, 256),
    }


def _h200_small():
    return _h200_schema(shrink=1000), {
        "dim": 128,
        "embedding_dim": 64,
        "dense_hidden": (256,),
        "dense_tokens": 4,
        "layers": 3,
        "x_tokens": 48,
        "events": (
            EventConfig(
                "click", dim=128, heads=4, tokens=16, seeds=64, kron_terms=4, layers=3, window=100, pffn_tokens=32
            ),
            EventConfig(
                "impression", dim=64, heads=2, tokens=8, seeds=32, kron_terms=2, layers=2, window=50, pffn_tokens=16
            ),
            EventConfig(
                "conversion", dim=128, heads=4, tokens=16, seeds=64, kron_terms=4, layers=3, window=100, pffn_tokens=32
            ),
        ),
        "wukong": WukongConfig(layers=1, fmb_tokens=24, fm_rank=16, hidden=(512,), experts=2),
        "head_hidden": (256,),
    }


PRESETS: dict[str, Callable[[], tuple[Schema, dict]]] = {
    "tiny": _tiny,
    "ml100k": _ml100k,
    "h200": _h200,
    "h200_small": _h200_small,
}
