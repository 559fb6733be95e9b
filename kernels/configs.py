"""Tile sizes, warps and pipeline stages of a kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Attributes:
    block_m, block_n: rows of a query tile, of a key tile.
    num_warps, num_stages: Triton's.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def forward_config(q) -> Config:
    return Config(64, 32, 4, 2)


dq_config = dkv_config = forward_config
