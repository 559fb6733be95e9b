"""Compiles Triton kernels for a GPU that need not be there, and reads what became of them.

TRITON_INTERPRET must be off when a kernel's module is imported.
"""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from faceter.kernels.block_attention.op import BLOCKS
from faceter.kernels.configs import Config, Key
from faceter.kernels.triton_launch import precision

INSTRUCTIONS = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}
# The operators' modules with the variants of their kernels.
VARIANTS = {
    "faceter.kernels.gdpa.triton": ("", "window"),
    "faceter.kernels.jagged_attention.triton": ("", "window", "bias", "window bias"),
    "faceter.kernels.block_attention.triton": tuple(
        f"block {block}{rotary}" for block in BLOCKS for rotary in ("", " rotary")
    ),
}
HEAD_DIMS = (32, 64, 128, 256)


@dataclass(frozen=True)
class Compiled:
    """Attributes:
    registers: per thread.
    spills: bytes of stack per thread.
    shared: bytes of shared memory per program.
    ptx: the text.
    """

    registers: int
    spills: int
    shared: int
    ptx: str

    @property
    def tensor_instruction(self) -> str | None:
        """The widest matrix instruction in it."""
        return next((name for name in reversed(INSTRUCTIONS.values()) if name in self.ptx), None)


@functools.cache
def kernels() -> dict[str, tuple]:
    """Name -> (kernel, its candidates, its variants, the largest last), of all kernels that have configs."""
    found = {}
    for module, variants in VARIANTS.items():
        module = importlib.import_module(module)
        for name, candidates in module.CANDIDATES.items():
            # dbias is of a bias.
            fitting = tuple(v for v in variants if "bias" in v) if "dbias" in name else variants
            found[name] = (getattr(module, name), candidates, fitting)
    return found


def compile_for(kernel, key: Key, config: Config, arch: str) -> Compiled:
    """Compiles one kernel as a call of this key with jagged operands would.

    Args:
        arch: "sm_90".
    """
    variant = key.variant if key.bits == 16 else kernels()[kernel.__name__][2][-1]
    constants = _constants(key, variant) | config
    warps, stages = constants.pop("num_warps"), constants.pop("num_stages")
    if "CHUNK" in constants:
        constants["CHUNK"] = min(constants["CHUNK"], key.head_dim)
    types = {name: _type(name, key.bits) if name not in constants else "constexpr" for name in kernel.arg_names}
    constants = {name: value for name, value in constants.items() if name in types}
    # As those of real calls mostly are.
    divisible = [
        position
        for position, name in enumerate(kernel.arg_names)
        if types[name].startswith("*") or name.endswith(("_st", "_sh", "_sb"))
    ]
    source = ASTSource(kernel, types, constants, {(i,): [["tt.divisibility", 16]] for i in divisible})
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    usage = _resource_usage(compiled.asm["cubin"])
    return Compiled(usage["REG"], usage["STACK"], compiled.metadata.shared, compiled.asm["ptx"])


def expected_instruction(key: Key, config: Config, arch: str) -> str | None:
    """The matrix instruction that a kernel should be made of, or None where there is no saying: fp32 has none, and the
    widest ones take 64 rows."""
    if key.bits == 32:
        return None
    rows = "BLOCK_N" if "dkv" in key.kernel else "BLOCK_M"
    tile = config[rows] if rows in config else int(key.variant.split()[1])
    if tile < 64 and arch != "sm_80":
        return None
    return INSTRUCTIONS[arch]


def _constants(key: Key, variant: str) -> dict:
    words = variant.split()
    return {
        "HEADS": 4, "D": key.head_dim, "BLOCK_D": key.head_dim, "ACT": "gelu", "FAST": key.bits == 16,
        "Q_JAGGED": True, "KV_JAGGED": True, "JAGGED": True, "Q_SHARED": False, "KV_SHARED": False,
        "ITEM": 128, "SCHEDULED": True, "WINDOW": "window" in words, "BIAS": "bias" in words, "NEGATIVE": False,
        "BIAS_HEADS": 4, "BIAS_SHARED": False, "BLOCK": int(words[1]) if words[:1] == ["block"] else None,
        "ROTARY": "rotary" in words, "UPCAST": False, "INTERPRETED": False, "PRECISION": precision(key.bits),
    }  # fmt: skip


def _type(name: str, bits: int) -> str:
    if name in ("q", "k", "v", "o", "do", "dq", "dk", "dv", "bias", "dbias"):
        return "*bf16" if bits == 16 else "*fp32"
    if name in ("lse", "row_lse", "row_delta", "cos", "sin"):
        return "*fp32"
    if name.endswith("offsets"):
        return "*i64"
    if name in ("schedule", "head_list"):
        return "*i32"
    return "fp32" if name.endswith("scale") else "i32"


def _resource_usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    # What is spilt lies on the stack, of which these kernels make no other use.
    return {name: int(count) for name, count in re.findall(r"(REG|STACK):(\d+)", text)}
