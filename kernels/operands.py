"""The forms that queries, keys and values may take, and what is checked of them.

| form   | tensor       | offsets              | rows of example b              |
|--------|--------------|----------------------|--------------------------------|
| jagged | (T, H, D)    | (B + 1,) int32/int64 | offsets[b] up to offsets[b + 1] |
| dense  | (B, N, H, D) | none                 | all N                          |
| shared | (N, H, D)    | none                 | all N, the same for every b    |

A jagged tensor may have rows past offsets[B]: they belong to no example, and are zero in outputs and gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_debug: ContextVar[bool] = ContextVar("faceter_debug", default=False)


@contextlib.contextmanager
def debug(on: bool = True) -> Iterator[None]:
    """Within it, operators also check what lies in their offsets, which on a GPU waits for the device."""
    token = _debug.set(on)
    try:
        yield
    finally:
        _debug.reset(token)


@dataclass(frozen=True)
class Side:
    """The rows of queries, or of keys and values.

    Attributes:
        offsets: (B + 1,) of a jagged side, else None.
        rows: most rows of an example (a bound, if jagged).
        total: rows of the tensor over all examples; of a shared side those of one.
        shared: the same rows for every example.
    """

    offsets: Tensor | None
    rows: int
    total: int
    shared: bool

    @classmethod
    def of(cls, x: Tensor, offsets: Tensor | None, rows: int) -> Side:
        """Of a tensor in one of the three forms; `rows` counts for a jagged one only."""
        if offsets is not None:
            return cls(offsets, rows, x.shape[0], False)
        if x.dim() == 4:
            return cls(None, x.shape[1], x.shape[0] * x.shape[1], False)
        return cls(None, x.shape[0], x.shape[0], True)


def batch_size(q: Tensor, k: Tensor, q_offsets: Tensor | None, kv_offsets: Tensor | None) -> int:
    """B, from whichever side has it.

    Raises:
        ValueError: both sides are shared, or they disagree.
    """
    found = {}
    for name, x, offsets in (("q", q, q_offsets), ("kv", k, kv_offsets)):
        if offsets is not None:
            found[f"{name}_offsets"] = offsets.shape[0] - 1
        elif x.dim() == 4:
            found["q" if name == "q" else "k"] = x.shape[0]
    if not found:
        raise ValueError(
            "q and k are both shared by the batch (3-D without offsets), so its size is unknown: give offsets, or a "
            "4-D tensor (a leading 1 for a batch of one)"
        )
    sizes = list(found.values())
    if sizes[0] != sizes[-1]:
        raise ValueError(f"the batch is {' but '.join(f'{size} in {name}' for name, size in found.items())}")
    return sizes[0]


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    max_q: int | None,
    max_kv: int | None,
) -> None:
    """Checks shapes, dtypes and devices.

    Raises:
        ValueError, TypeError: the message names the argument and what it should be.
    """
    for name, x, offsets in (("q", q, q_offsets), ("k", k, kv_offsets), ("v", v, kv_offsets)):
        ranks = (3,) if offsets is not None else (3, 4)
        if x.dim() not in ranks:
            forms = "(T, H, D) with offsets" if offsets is not None else "(B, N, H, D), or (N, H, D) without offsets"
            raise ValueError(f"{name} must be {forms}, is {tuple(x.shape)}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} must be float64, float32, float16 or bfloat16, is {x.dtype}")
        if x.dtype != q.dtype:
            raise TypeError(f"q is {q.dtype}, {name} is {x.dtype}: they must be the same")
        if x.device != q.device:
            raise ValueError(f"q is on {q.device}, {name} is on {x.device}: they must be on the same device")
        if x.shape[-2:] != q.shape[-2:]:
            raise ValueError(
                f"q has (heads, head dim) {tuple(q.shape[-2:])}, {name} has {tuple(x.shape[-2:])}: they must be equal"
            )
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape, are {tuple(k.shape)} and {tuple(v.shape)}")
    check_side("q", q_offsets, max_q, q.device)
    check_side("kv", kv_offsets, max_kv, q.device)
    batch_size(q, k, q_offsets, kv_offsets)


def _names(side: str) -> tuple[str, str]:
    """Of a side's offsets and their bound, as arguments."""
    return (f"{side}_offsets", f"max_{side}") if side else ("offsets", "max_len")


def check_side(side: str, offsets: Tensor | None, bound: int | None, device: torch.device) -> None:
    """Checks offsets and the bound of their lengths. side: "q" or "kv"; "" where one set of offsets serves all.

    Raises:
        ValueError, TypeError: the message names the argument and what it should be.
    """
    if offsets is None:
        return
    name, bound_name = _names(side)
    if offsets.dim() != 1 or offsets.shape[0] < 1:
        raise ValueError(f"{name} must be (B + 1,), is {tuple(offsets.shape)}")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, is {offsets.dtype}")
    if offsets.device != device:
        raise ValueError(f"{name} is on {offsets.device}, q is on {device}: put it there")
    if bound is None:
        raise ValueError(f"{name} needs {bound_name}, a bound of its examples' lengths as a Python int")
    if isinstance(bound, int) and bound < 0:
        raise ValueError(f"{bound_name} must not be negative, is {bound}")


def check_contents(
    q: Tensor, k: Tensor, q_offsets: Tensor | None, kv_offsets: Tensor | None, max_q: int, max_kv: int
) -> None:
    """Checks what lies in the offsets, under `debug`. Called inside operators: so it works in compiled graphs too.

    Raises:
        ValueError: see `check_offsets`.
    """
    check_side_contents("q", q, q_offsets, max_q)
    check_side_contents("kv", k, kv_offsets, max_kv)


def check_side_contents(side: str, x: Tensor, offsets: Tensor | None, bound: int) -> None:
    """Likewise of one side, whose rows are those of x."""
    if _debug.get() and offsets is not None:
        check_offsets(offsets, x.shape[0], bound, side)


def check_offsets(offsets: Tensor, total: int, bound: int, side: str) -> None:
    """Checks what lies in offsets.

    Raises:
        ValueError: they do not start at 0, fall, end past `total`, or an example is longer than `bound`.
    """
    values = offsets.cpu()
    lengths = values.diff()
    name, bound_name = _names(side)
    if values[0] != 0:
        raise ValueError(f"{name} must start at 0, starts at {int(values[0])}")
    if (lengths < 0).any():
        at = int((lengths < 0).nonzero()[0])
        raise ValueError(f"{name} must not fall: [{at}] is {int(values[at])}, [{at + 1}] is {int(values[at + 1])}")
    if values[-1] > total:
        raise ValueError(f"{name} ends at {int(values[-1])}, but there are {total} rows")
    if lengths.numel() and lengths.max() > bound:
        at = int(lengths.argmax())
        raise ValueError(f"example {at} has {int(lengths[at])} rows, more than {bound_name} = {bound}")


def window_bounds(causal: bool, window: tuple[int | None, int | None]) -> tuple[int, int]:
    """(left, right) with -1 for no bound.

    Raises:
        ValueError: a negative bound, or causal with a window to the right.
    """
    left, right = window
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and bound < 0:
            raise ValueError(f"window's {name} bound must be None or at least 0, is {bound}")
    if causal:
        if right:
            raise ValueError(f"causal and a window of {right} keys to the right contradict each other")
        right = 0
    return (-1 if left is None else left, -1 if right is None else right)
