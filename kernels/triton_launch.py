"""What every launch of an attention kernel needs on the host."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from faceter.kernels.implementations import interpreted
from faceter.kernels.operands import Side

# Programs for each multiprocessor that sum the gradient of a side shared by the batch.
_WAVES = 2


def with_dense_rows(x: Tensor) -> Tensor:
    """x, with the elements of a row side by side; kernels take any other strides."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides(x: Tensor) -> tuple[int, int, int]:
    """(of an example, of a row, of a head), in elements; of an example 0 if x is jagged or shared."""
    return (x.stride(0) if x.dim() == 4 else 0, x.stride(-3), x.stride(-2))


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


@functools.lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def shares(side: Side, batch: int, programs: int, device: torch.device) -> tuple[int, int]:
    """Into how many shares the examples go for the gradient of a shared side, and examples of each: enough shares to
    fill the device, `programs` for each. Of another side every example is one."""
    if not side.shared:
        return batch, 1
    wanted = max(1, _WAVES * _multiprocessors(device) // max(1, programs))
    share = max(1, -(-batch // wanted))
    return max(1, -(-batch // share)), share


def gradient_of(x: Tensor, side: Side, count: int) -> Tensor:
    """Uninitialised memory for the gradient of x; of a shared one for `count` partial sums in fp32."""
    if side.shared:
        return torch.empty((count, *x.shape), dtype=torch.float32, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def summed(gradient: Tensor, x: Tensor, side: Side) -> Tensor:
    """The gradient, from partial sums if there are."""
    return gradient.sum(0).to(x.dtype) if side.shared else gradient
