"""Kernels: one folder for each operator, with its definition and its implementations."""
