"""CSV with packed histories: every role, every way in which a field can be wrong."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import packed_csv
from faceter.data.convert.hashing import hash_ids
from faceter.data.errors import DataError
from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn

SCHEMA = Schema(
    "shop",
    labels=(Label("click"),),
    dense=(DenseColumn("price", fill=0.0), DenseColumn("rank")),
    sparse=(SparseColumn("item", 100), SparseColumn("brand", 50), SparseColumn("tags", 9)),
    sequences=(
        SequenceGroup(
            "seen",
            ids=(SparseColumn("seen_item", 100, table="item"), SparseColumn("seen_brand", 50, table="brand")),
            dense=(DenseColumn("seen_price", fill=0.0),),
            timestamp="seen_time",
        ),
    ),
    timestamp="time",
    weight="weight",
    domain=Domain("page", ("home", "search")),
)
HEADER = "click,price,unused,rank,item,brand,tags,seen_item,seen_brand,seen_price,seen_time,time,weight,page"
GOOD = [
    "1,2.5,x,1,7,acme,1^2,3^4,acme^zed,1.5^,10^20,30,1,home",
    "0,,x,-2e1,8,,,,,,,31,0.5,search",
    '1,4,"x,y",3,9,zed,8,99,zed,2,5,32,2,home',
]
OPTIONS = {"hashed": ("brand", "seen_brand"), "lists": ("tags",)}


def convert(folder, lines=GOOD, header=HEADER, schema=SCHEMA, **options):
    (folder / "in.csv").write_text("".join(line + "\n" for line in [header, *lines]))
    options = OPTIONS | {"valid_fraction": 0.0, "test_fraction": 0.0} | options
    return packed_csv.convert(folder / "out", folder / "in.csv", schema, **options)


def brand(*words):
    return hash_ids(pa.array(words), 50).tolist()


@pytest.mark.parametrize("block_bytes", [150, 4 << 20])
def test_every_role(tmp_path, block_bytes):
    assert convert(tmp_path, block_bytes=block_bytes) == Schema.load(tmp_path / "out") == SCHEMA
    table = pq.read_table(tmp_path / "out" / "train")
    assert set(table.column_names) == set(SCHEMA.columns)
    assert table.to_pydict() == {
        "click": [1.0, 0.0, 1.0],
        "price": [2.5, None, 4.0],
        "rank": [1.0, -20.0, 3.0],
        "item": [7, 8, 9],
        "brand": [*brand("acme"), 0, *brand("zed")],
        "tags": [[1, 2], [], [8]],
        "seen_item": [[3, 4], [], [99]],
        "seen_brand": [brand("acme", "zed"), [], brand("zed")],
        "seen_price": [[1.5, None], [], [2.0]],
        "seen_time": [[10, 20], [], [5]],
        "time": [30, 31, 32],
        "weight": [1.0, 0.5, 2.0],
        "page": ["home", "search", "home"],
    }


def test_other_separators_and_order_split(tmp_path):
    lines = [line.replace('"x,y"', "x").replace(",", ";").replace("^", "|") for line in GOOD]
    convert(tmp_path, lines * 10, HEADER.replace(",", ";"), delimiter=";", list_separator="|", test_fraction=0.1)
    assert pq.read_table(tmp_path / "out" / "test")["item"].to_pylist() == [7, 8, 9]
    assert pq.read_table(tmp_path / "out" / "train").num_rows == 27


def with_field(name, value):
    fields = GOOD[0].split(",")
    fields[HEADER.split(",").index(name)] = value
    return [*GOOD, ",".join(fields)]


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("click", "2", r"line 5: 2.0 is not in \[0.0, 1.0\] \[file .*in.csv, column click\]"),
        ("click", "", r"line 5: the value is missing \[file .*column click\]"),
        ("click", "no", r"line 5: 'no' is not a number \[file .*column click\]"),
        ("click", "nan", r"line 5: 'nan' is not a number \[file .*column click\]"),
        ("rank", "", r"line 5: the value is missing \[file .*column rank\]"),
        ("item", "100", r"line 5: 100 is not in \[0, 99\] \[file .*column item\]"),
        ("item", "-1", r"line 5: -1 is not in \[0, 99\] \[file .*column item\]"),
        ("item", "1.5", r"line 5: '1.5' is not an integer.*column item\]"),
        ("item", "", r"line 5: the value is missing \[file .*column item\]"),
        ("tags", "1^9", r"line 5: element 1: 9 is not in \[0, 8\] \[file .*column tags\]"),
        ("seen_item", "1^^2", r"line 5: element 1: the value is missing \[file .*column seen_item\]"),
        ("seen_item", "1^x", r"line 5: element 1: 'x' is not an integer.*column seen_item\]"),
        ("seen_brand", "acme", r"line 5: 1 elements, but 2 in seen_item of the same group 'seen' .*seen_brand\]"),
        ("seen_time", "", r"line 5: 0 elements, but 2 in seen_item of the same group 'seen' .*seen_time\]"),
        ("time", "99999999999999999999", r"line 5: '9+' is not an integer of at most 18 digits.*column time\]"),
        ("weight", "-1", r"line 5: -1.0 is not at least 0.0 \[file .*column weight\]"),
        ("page", "cart", r"line 5: 'cart' is none of the domains home, search \[file .*column page\]"),
        ("page", "home,1", r"line 5 has 15 fields, expected 14"),
    ],
)
@pytest.mark.parametrize("block_bytes", [200, 4 << 20])
def test_bad_fields_leave_nothing(tmp_path, name, value, message, block_bytes):
    with pytest.raises(DataError, match=message):
        convert(tmp_path, with_field(name, value), block_bytes=block_bytes)
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


def test_bad_files_and_options(tmp_path):
    with pytest.raises(DataError, match=r"lacks a column \[file .*column seen_price\]"):
        convert(tmp_path, header=HEADER.replace("seen_price", "price2"))
    with pytest.raises(DataError, match="header and no rows"):
        convert(tmp_path, [])
    (tmp_path / "empty").write_text("")
    for name, message in (("empty", "is empty"), ("none", "No such file")):
        with pytest.raises(DataError, match=message):
            packed_csv.convert(tmp_path / "out", tmp_path / name, SCHEMA)
    with pytest.raises(DataError, match="hashed names 'price'"):
        convert(tmp_path, hashed=("price",))
    with pytest.raises(DataError, match="lists names 'seen_item'"):
        convert(tmp_path, lists=("seen_item",))
    assert not (tmp_path / "out").exists()
