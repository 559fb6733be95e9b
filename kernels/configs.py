"""Which tile sizes, warps and pipeline stages a kernel runs with.

For each kind of GPU a table in `tuned/` says so; `tools/tune` writes it. A row is for one kernel, size of dtype, head
dim, variant (window, bias, ...) and length bucket; its config was measured there or, of a GPU that was not at hand, is
the first that compiles without spills. What the table lacks is tuned at the first call and kept in a file (see
`tuning`): never for the lengths of a batch, whose bounds alone matter.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from faceter.kernels.implementations import interpreted

# Keyword arguments of a launch: constexprs of the kernel, and Triton's num_warps and num_stages.
Config = Mapping[str, int]

TABLES = Path(__file__).parent / "tuned"
# Of bounds of lengths: up to 64 rows a tile is cut short, up to 256 a loop is over before its pipeline is full.
BUCKETS = (64, 256)
ANY = "any"


@dataclass(frozen=True)
class Key:
    """What a config depends on.

    Attributes:
        kernel: its name.
        bits: of an element: 16 or 32.
        head_dim: padded to a power of two, at least 32.
        variant: of the kernel, "" = plain; always so for 32 bits, where one config serves all.
        rows: bucket of the bound of rows that tiles are cut from, "any" in a table's row for all lengths.
        loop: likewise of the rows that a program goes through.
    """

    kernel: str
    bits: int
    head_dim: int
    variant: str = ""
    rows: str = ANY
    loop: str = ANY

    @classmethod
    def of(cls, kernel: str, x: torch.Tensor, variant: str, rows: int, loop: int) -> Key:
        """Of a call whose operands are like x, (.., D)."""
        dim, bits = max(32, 1 << (x.shape[-1] - 1).bit_length()), 8 * x.element_size()
        return cls(kernel, bits, dim, variant if bits == 16 else "", bucket(rows), bucket(loop))

    @property
    def of_all_lengths(self) -> Key:
        return replace(self, rows=ANY, loop=ANY)


def bucket(rows: int) -> str:
    """The bucket of a bound of lengths."""
    return next((f"<= {bound}" for bound in BUCKETS if rows <= bound), f"> {BUCKETS[-1]}")


@functools.lru_cache
def architecture(device: torch.device) -> str:
    """The kind of GPU as tables are named: sm_90, gfx942, xpu; "interpreter" where kernels run on the CPU."""
    if interpreted():
        return "interpreter"
    if device.type != "cuda":
        return device.type
    if torch.version.hip is not None:
        return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@functools.lru_cache
def table(arch: str) -> dict[Key, Config]:
    """The rows of a GPU's table, empty if it has none."""
    file = TABLES / f"{arch}.json"
    if not file.exists():
        return {}
    return {Key(**row["key"]): row["config"] for row in json.loads(file.read_text())["rows"]}
