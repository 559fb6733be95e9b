"""For tests: a small random data set of the `tiny` model's schema, with one event type."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from faceter.data.schema import Schema
from faceter.model.config import GemConfig


def tiny_schema() -> Schema:
    schema = GemConfig.from_name("tiny").schema
    return dataclasses.replace(schema, sequences=schema.sequences[:1])  # one event type: half the time


def tiny_table(rows: int, seed: int = 0) -> pa.Table:
    """Random rows; a click is likelier for the first items."""
    schema, rng = tiny_schema(), np.random.default_rng(seed)
    now = 1_700_000_000
    columns: dict[str, list | np.ndarray] = {}
    for column in schema.sparse:
        columns[column.name] = rng.integers(0, column.num_embeddings, rows)
    columns["tags"] = [rng.integers(0, 12, n).tolist() for n in rng.integers(0, 4, rows)]
    for group in schema.sequences:
        lengths = rng.integers(0, group.max_length + 1, rows)
        for column in group.ids:
            columns[column.name] = [rng.integers(0, column.num_embeddings, n).tolist() for n in lengths]
        for column in group.dense:
            columns[column.name] = [rng.normal(size=n).astype(np.float32).tolist() for n in lengths]
        if group.timestamp:
            columns[group.timestamp] = [np.sort(rng.integers(now - 10**5, now, n)).tolist() for n in lengths]
    for column in schema.dense:
        columns[column.name] = rng.normal(size=rows).astype(np.float32)
    columns["time"] = np.full(rows, now)
    columns["surface"] = rng.choice(["feed", "story", "search"], rows).tolist()
    columns["click"] = (rng.random(rows) < np.where(columns["item"] < 15, 0.8, 0.2)).astype(np.int8)
    columns["buy"] = (rng.random(rows) < 0.3).astype(np.int8)
    return pa.table({name: columns[name] for name in schema.columns})


def write_tiny(folder: Path, train: int = 320, other: int = 64, row_group_rows: int = 32) -> Path:
    """Writes the data set folder."""
    for seed, (part, rows) in enumerate((("train", train), ("valid", other), ("test", other))):
        (folder / part).mkdir(parents=True)
        pq.write_table(tiny_table(rows, seed), folder / part / "part-00000.parquet", row_group_size=row_group_rows)
    tiny_schema().save(folder)
    return folder
