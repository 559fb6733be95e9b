"""Softmax attention on jagged tensors."""
