"""Generalised dot-product attention: attention with an elementwise activation in place of softmax."""
