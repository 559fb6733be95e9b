"""Rows to batches: schema, Parquet reader, converters. The lowest layer: imports nothing else of faceter."""
