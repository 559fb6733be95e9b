"""What the device itself reaches, in the same run and by the same clock."""

from __future__ import annotations

import torch

from faceter.tools.bench.kernels.timing import alternate

SECONDS = 0.5


def measure(device: torch.device) -> dict[str, float]:
    """cublas_tflops: bf16 matmul of 8192^3; copy_gbs: of 2 GiB, bytes read and written. On a CPU of toy size.

    Raises:
        RuntimeError: the device can't.
    """
    n, size = (8192, 1 << 31) if device.type == "cuda" else (64, 1 << 20)
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(size // 2, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    calls = {"matmul": lambda copy: a @ b, "copy": lambda copy: target.copy_(source)}
    found = alternate(calls, 1, device, SECONDS)
    for timing in found.values():
        if timing.failure:
            raise RuntimeError(timing.failure)
    return {
        "cublas_tflops": 2 * n**3 / found["matmul"].milliseconds / 1e9,
        "copy_gbs": 2 * size / found["copy"].milliseconds / 1e6,
    }
