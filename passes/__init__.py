"""Passes: each finds one pattern in a model's graph and puts a kernel or a cast in its place."""
