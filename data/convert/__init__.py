"""Converters: other formats, and generated data, to Parquet files with a schema (`faceter data convert`)."""
