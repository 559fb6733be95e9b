import pickle

from faceter.data.errors import DataError


def test_message_names_what_is_known():
    error = DataError("null label", file="a.parquet", row_group=1, row=7, column="click", remedy="Repair the row")
    assert str(error) == "null label [file a.parquet, row group 1, row 7, column click]. Repair the row"
    assert str(DataError("no schema")) == "no schema"


def test_survives_the_trip_out_of_a_process():
    error = DataError("null label", file="a.parquet", row_group=0, row=0, column="click", remedy="Repair the row")
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), vars(twin)) == (str(error), vars(error))
