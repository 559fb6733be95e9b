"""Tile lists: which rows of which example each program of a jagged kernel works on."""
