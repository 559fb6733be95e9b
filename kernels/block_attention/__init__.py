"""Softmax attention within fixed blocks of rows of each sequence."""
