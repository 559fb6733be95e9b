"""Compiles Triton kernels for a GPU that need not be there, and reads what became of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


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
        for name in ("tcgen05.mma", "wgmma.mma_async", "mma.sync"):
            if name in self.ptx:
                return name
        return None


def compile_for(
    kernel, signature: dict[str, str], constants: dict, capability: int, warps: int, stages: int
) -> Compiled:
    """Compiles one kernel.

    Args:
        kernel: a `triton.jit` function; TRITON_INTERPRET must be off when its module is imported.
        signature: argument -> type ("*bf16", "i32", "fp32"), all that are not constants. Pointers and integers count as
            divisible by 16, as those of real calls mostly are.
        constants: constexpr -> value.
        capability: 80, 90, 100.
        warps, stages: Triton's.
    """
    attributes = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(kernel.arg_names)
        if name in signature and (signature[name].startswith("*") or name.endswith(("_st", "_sh", "_sb")))
    }
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, types, constants, attributes)
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = _resource_usage(compiled.asm["cubin"])
    return Compiled(usage["REG"], usage["STACK"], compiled.metadata.shared, compiled.asm["ptx"])


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
