import pytest

from faceter.data.schema import DenseColumn, Label, Schema, SequenceGroup, SparseColumn
from faceter.model.config import ConfigError, EventConfig, GemConfig, WukongConfig

SCHEMA = Schema(
    "s", (Label("y"),), (DenseColumn("a"),), sequences=(SequenceGroup("click", (SparseColumn("click_id", 5),)),)
)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: EventConfig(dim=10, heads=4), "heads = 4 does not divide dim = 10"),
        (lambda: EventConfig(dim=6, heads=2, position="rope"), "needs a head dim divisible by 2, is 3"),
        (lambda: EventConfig(dim=6, heads=1, position="both"), "needs a head dim divisible by 4, is 6"),
        (lambda: EventConfig(activations=()), "activations is empty"),
        (lambda: EventConfig(name="click", window=0), "event 'click': window must be positive, is 0"),
        (lambda: WukongConfig(fm_rank=-1), "wukong: fm_rank must be at least 0, is -1"),
        (lambda: WukongConfig(hidden=(8, 0)), r"wukong: hidden must be positive widths, is \(8, 0\)"),
        (lambda: WukongConfig(experts=0), "experts must be positive"),
        (lambda: GemConfig(SCHEMA, pma_tokens=-1), "gem: pma_tokens must be at least 0"),
        (lambda: GemConfig(SCHEMA, head_hidden=(0,)), "gem: head_hidden must be positive widths"),
        (lambda: GemConfig(SCHEMA, dropout=1.0), r"gem: dropout must be in \[0, 1\), is 1.0"),
        (lambda: GemConfig(SCHEMA, events=(EventConfig("view"),)), r"'view' is no sequence group of schema 's'"),
        (lambda: GemConfig(SCHEMA, events=(EventConfig("click"),) * 2), "an event type is named twice"),
        (lambda: GemConfig(SCHEMA, embedding_std=0.0), "embedding_std must be positive"),
        (lambda: GemConfig(SCHEMA, wide=("user",)), r"wide: \['user'\] are no sparse columns of schema 's'"),
        (
            lambda: GemConfig(SCHEMA, events=(EventConfig("click", ids=("a",)),)),
            r"event 'click': ids \['a'\] are no id columns of it \(it has \['click_id'\]\)",
        ),
        (lambda: GemConfig(SCHEMA, layers=1), "event 'click': layers = 2 is more than the model's layers = 1"),
        (lambda: GemConfig(SCHEMA, x_tokens=8), "fmb_tokens = 8 must be less than x_tokens = 8"),
        (lambda: GemConfig(Schema("s", (Label("y"),))), "schema 's' has no feature"),
        (lambda: GemConfig.from_name("huge"), "no configuration 'huge'; there are tiny, ml100k, h200, h200_small"),
    ],
)
def test_what_cannot_be_built_is_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_event_without_an_entry_gets_the_default():
    config = GemConfig(SCHEMA, event_default=EventConfig(dim=32))
    assert config.event("click") == EventConfig("click", dim=32)
    assert GemConfig(SCHEMA, events=(EventConfig("click", dim=16),)).event("click").dim == 16
