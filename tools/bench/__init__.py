"""Benchmarks: each prints a table that names its machine, versions and method."""
