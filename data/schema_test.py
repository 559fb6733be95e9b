import pytest
import yaml

from faceter.data.errors import DataError
from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn
from faceter.data.testing_tables import full_schema


def test_yaml_round_trip(tmp_path):
    schema = full_schema()
    schema.save(tmp_path)
    assert Schema.load(tmp_path) == schema
    assert Schema.load(tmp_path / "schema.yaml") == schema
    integers = Schema("s", (Label("y"),), domain=Domain("d", (3, 1)))
    assert Schema.from_dict(yaml.safe_load(integers.to_yaml())) == integers


def test_columns_and_tables():
    schema = full_schema()
    assert schema.columns[:5] == ("click", "buy", "price", "age", "user")
    assert set(schema.columns) >= {"click_time", "view_item", "time", "weight", "surface"}
    assert schema.tables == {"user": 100, "tags": 100, "item": 100, "click_cat": 100, "view_item": 100}
    # `item` shares its table with a sequence, so it's looked up row by row.
    assert [c.name for c in schema.bag_columns] == ["user", "tags"]
    assert [c.name for c in schema.row_columns] == ["click_item", "click_cat", "view_item", "item"]
    assert schema.num_domains == 2


_LABELS = (Label("y"),)
_IDS = (SparseColumn("a", 5),)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"labels": ()}, "has no label"),
        ({"labels": (Label("y"), Label("y"))}, "names column 'y' twice"),
        ({"labels": _LABELS, "sequences": (SequenceGroup("g", ()),)}, "'g' has no id column"),
        ({"labels": _LABELS, "sequences": (SequenceGroup("g", _IDS, max_length=0),)}, "max_length must be at least 1"),
        ({"labels": _LABELS, "sequences": (SequenceGroup("g", _IDS, timestamp="t"),)}, "rows have none"),
        (
            {"labels": _LABELS, "sequences": (SequenceGroup("g", _IDS), SequenceGroup("g", (SparseColumn("b", 5),)))},
            "group twice",
        ),
        ({"labels": _LABELS, "dense": (DenseColumn("d", std=0.0),)}, "std of a dense column must be positive"),
        ({"labels": _LABELS, "sparse": (SparseColumn("a", 0),)}, "num_embeddings must be at least 1"),
        ({"labels": _LABELS, "sparse": (SparseColumn("a", 5), SparseColumn("b", 6, "a"))}, "table 'a' has 5 rows"),
        ({"labels": _LABELS, "domain": Domain("d", ())}, "domain has no values"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        Schema("s", **arguments)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[", "schema is not YAML"),
        ("- 1", "schema must be a mapping, is list"),
        ("name: s\nlabels: [{name: y}]\nlables: []", "unknown key 'lables'"),
        ("name: s", "lacks the key 'labels'"),
        ("name: s\nlabels: {name: y}", "schema.labels must be a list"),
        ("name: s\nlabels: [{name: y, weight: heavy}]", r"schema.labels\[0\].weight must be float"),
        ("name: s\nlabels: [{name: y}]\nsparse: [{name: a, num_embeddings: true}]", "num_embeddings must be int"),
        ("name: s\nlabels: [{name: y}]\ndomain: {column: d, values: [a, 1]}", "list of strings or a list of integers"),
    ],
)
def test_bad_yaml_is_refused_with_the_file(tmp_path, text, message):
    file = tmp_path / "schema.yaml"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        Schema.load(file)
    assert str(file) in str(caught.value)


def test_missing_schema(tmp_path):
    with pytest.raises(DataError, match=r"no schema \[file .*schema.yaml\]"):
        Schema.load(tmp_path)
