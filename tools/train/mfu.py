"""End-to-end model FLOPs utilisation.

E2E MFU = model FLOPs of a step / (its wall time, with reading and the optimizer * datasheet peak of all its devices).
Model FLOPs: forward and backward on the actual jagged lengths, nothing computed twice (`Gem.flops`).
"""

from __future__ import annotations

import torch

# Dense bf16 TFLOP/s of the vendor's data sheets, by a part of the name that CUDA gives; the first that fits counts.
PEAKS = (
    ("GB200", 2500),
    ("B200", 2250),
    ("H200", 989),
    ("H100 PCIe", 756),
    ("H100 NVL", 835),
    ("H100", 989),
    ("A100", 312),
    ("L40S", 362),
    ("L4", 121),
    ("A10G", 70),
    ("A10", 125),
)


def peak_flops(device: torch.device) -> float | None:
    """Datasheet peak in FLOP/s; None for a CPU or a GPU that isn't listed."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * 1e12 for part, peak in PEAKS if part in name), None)


def mfu(flops: float, seconds: float, peak: float | None, devices: int = 1) -> float | None:
    """Fraction of the peak; None where there is no peak."""
    return flops / seconds / (peak * devices) if peak and seconds > 0 else None
