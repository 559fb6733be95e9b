"""What torch's function transforms may do with an operator that has a backward op and no other derivative."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def refuse_transforms(op: str, *tensors: Tensor) -> None:
    """Raises where a transform would get nothing, or zeros, in place of a derivative.

    Raises:
        NotImplementedError: under `torch.func.grad`, `jvp` and what is made of them, and for dual tensors.
    """
    if torch.compiler.is_compiling():
        return  # what is compiled was called through here, or is refused by torch.compile itself
    interpreter = torch._C._functorch.peek_interpreter_stack()
    kinds = torch._C._functorch.TransformType
    if interpreter is not None and interpreter.key() in (kinds.Grad, kinds.Jvp):
        raise NotImplementedError(f"{op} has no torch.func derivative: use torch.autograd.grad or backward()")
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(f"{op} has no forward-mode derivative (jvp): use reverse mode")
