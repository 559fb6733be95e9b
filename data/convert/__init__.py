"""Converters: other formats, and generated data, to a folder of Parquet files with a schema (`faceter data convert`)."""
