"""What launches of Triton kernels need on the host."""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor

from faceter.kernels.configs import Config
from faceter.kernels.implementations import interpreted

# Numbers that change from batch to batch: a kernel is not compiled anew where one is a multiple of 16, or 1.
NUMBERS = ["batch", "share", "q_rows", "q_total", "kv_rows", "kv_total", "out_rows", "rows", "total", "left", "right"]


def with_dense_rows(x: Tensor) -> Tensor:
    """x, with the elements of a row side by side, and a tile's rows within 32 bits; kernels take any other strides."""
    return x if x.stride(-1) == 1 and x.stride(-3) < 1 << 23 else x.contiguous()


def strides(*tensors: Tensor) -> list[int]:
    """(of an example, of a row, of a head) of each, in elements; of an example 0 if jagged or shared."""
    return [stride for x in tensors for stride in (x.stride(0) if x.dim() == 4 else 0, x.stride(-3), x.stride(-2))]


@functools.lru_cache(maxsize=256)
def head_list(heads: tuple[int, ...], device: torch.device) -> Tensor:
    """(n,) int32 on the device, made once."""
    return torch.tensor(heads, dtype=torch.int32, device=device)


@functools.lru_cache
def has_hardware_tanh(device: torch.device) -> bool:
    """Whether kernels may use NVIDIA's tanh.approx."""
    if interpreted() or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (7, 5)


def padded_dim(dim: int) -> int:
    """Columns of a tile of rows."""
    return max(16, triton.next_power_of_2(dim))


def precision(bits: int) -> str | None:
    """Of a product of tiles whose elements have so many bits: float32 is not rounded to tf32."""
    return "ieee" if bits == 32 else None


def tile_configs(*candidates: tuple[int, int, int, int]) -> list[Config]:
    """From (BLOCK_M, BLOCK_N, num_warps, num_stages)."""
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    return [dict(zip(names, candidate, strict=True)) for candidate in candidates]


# Of fp32, which has no tensor cores: a thread holds its rows and columns whole, and larger tiles spill by the kilobyte.
EXACT_TILES = tile_configs((16, 16, 8, 1), (16, 16, 4, 1), (16, 32, 8, 1), (32, 16, 8, 1))
