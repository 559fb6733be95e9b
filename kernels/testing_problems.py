"""Drawn inputs of attention operators: forms, lengths, layouts, dtypes, scales, windows."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

FORMS = ("jagged", "dense", "shared")
LAYOUTS = ("plain", "heads first", "sliced", "dims first")
# Around the tile sizes of kernels.
EDGES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
SMALL_DIMS, LARGE_DIMS = (16, 24, 40, 64), (96, 128, 192, 256)


@dataclass
class Problem:
    """Inputs of one call.

    Attributes:
        q, k, v: in any of the forms.
        q_offsets, kv_offsets, max_q, max_kv: as the operators take them.
        qk_scale, out_scale, window: likewise.
        needs: which of q, k, v need a gradient.
        seed: of the output's gradient.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_offsets: Tensor | None
    kv_offsets: Tensor | None
    max_q: int | None
    max_kv: int | None
    qk_scale: float
    out_scale: float
    window: tuple[int | None, int | None]
    needs: tuple[bool, bool, bool]
    seed: int

    @property
    def options(self) -> dict:
        names = ("q_offsets", "kv_offsets", "max_q", "max_kv", "qk_scale", "out_scale", "window")
        return {name: getattr(self, name) for name in names}

    def double(self) -> Problem:
        """The same numbers in float64, contiguous."""
        q, k, v = (x.detach().double().contiguous() for x in (self.q, self.k, self.v))
        return dataclasses.replace(self, q=q, k=k, v=v)

    def __repr__(self) -> str:
        """What a failing example shows: shapes and lengths instead of numbers."""
        parts = [
            f"{n} {tuple(x.shape)} strides {x.stride()} {x.dtype}" for n, x in zip("qkv", self.tensors, strict=True)
        ]
        for name in ("q_offsets", "kv_offsets"):
            offsets = getattr(self, name)
            if offsets is not None:
                parts.append(f"{name} {offsets.tolist()} {offsets.dtype}")
        names = ("max_q", "max_kv", "qk_scale", "out_scale", "window", "needs", "seed")
        return "Problem(" + ", ".join(parts + [f"{n}={getattr(self, n)}" for n in names]) + ")"

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(repr(self))  # Hypothesis would print the fields

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v


def offsets_of(lengths: list[int], dtype: torch.dtype = torch.int64, device: str = "cpu") -> Tensor:
    """(B + 1,): 0 and the running sums."""
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()], dtype=dtype, device=device)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers with other strides."""
    if layout == "heads first":  # as after a transpose for (B, H, N, D)
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "sliced":  # one of three in a packed projection, every second row of it
        wide = x.new_full((*x.shape[:-3], 2 * x.shape[-3], 3, *x.shape[-2:]), float("nan"))
        part = wide[..., ::2, 1, :, :]
        part.copy_(x)
        return part
    if layout == "dims first":  # the elements of a row are not side by side
        return x.transpose(-2, -1).contiguous().transpose(-2, -1)
    return x


@st.composite
def lengths(draw, batch: int, most: int) -> list[int]:
    """Of `batch` examples, at most `most`: edges of tiles, anything, or one giant among tiny ones."""
    kind = draw(st.sampled_from(("edges", "any", "giant")))
    if kind == "edges":
        return draw(st.lists(st.sampled_from([n for n in EDGES if n <= most]), min_size=batch, max_size=batch))
    if kind == "any":
        return draw(st.lists(st.integers(0, most), min_size=batch, max_size=batch))
    found = draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
    if batch:
        found[draw(st.integers(0, batch - 1))] = most
    return found


@st.composite
def problems(
    draw,
    dtypes: tuple[torch.dtype, ...],
    device: str = "cpu",
    most: int = 130,
    dims: tuple[int, ...] = SMALL_DIMS,
    same_offsets: bool = False,
) -> Problem:
    """A problem.

    Args:
        dtypes: to draw from.
        device: of the tensors.
        most: rows of an example.
        dims: head dims to draw from.
        same_offsets: self-attention: queries and keys are rows of the same examples.
    """
    dtype, dim, heads = draw(st.sampled_from(dtypes)), draw(st.sampled_from(dims)), draw(st.integers(1, 3))
    batch, seed = draw(st.integers(0, 4)), draw(st.integers(0, 2**31 - 1))
    forms = [draw(st.sampled_from(FORMS)) for _ in range(2)]
    if same_offsets:
        forms = ["jagged", "jagged"]
    if forms == ["shared", "shared"]:
        forms[draw(st.integers(0, 1))] = draw(st.sampled_from(FORMS[:2]))
    if batch == 0 and "dense" in forms:
        batch = 1
    generator = torch.Generator().manual_seed(seed)
    tensors, offsets, bounds, rows = [], [], [], None
    for form in forms:
        if form == "jagged":
            if rows is None or not same_offsets:
                rows = draw(lengths(batch, most))
                total = sum(rows) + draw(st.sampled_from((0, 0, 1, 40)))
            offsets.append(offsets_of(rows, draw(st.sampled_from((torch.int32, torch.int64))), device))
            # A bound need not be reached.
            bounds.append(max(rows, default=0) + draw(st.sampled_from((0, 0, 5))))
            shape = (total, heads, dim)
        else:
            n = draw(st.sampled_from([n for n in EDGES if 0 < n <= most]))
            shape = (batch, n, heads, dim) if form == "dense" else (n, heads, dim)
            offsets.append(None)
            bounds.append(None)
        tensors.append(shape)
    shapes = (tensors[0], tensors[1], tensors[1])
    layouts = [draw(st.sampled_from(LAYOUTS)) for _ in shapes]
    q, k, v = (
        laid_out(torch.randn(shape, generator=generator).to(device, dtype), layout)
        for shape, layout in zip(shapes, layouts, strict=True)
    )
    # Standard deviation of the scores; at 10 they reach +-30.
    spread = draw(st.sampled_from((0.5, 2.0, 10.0)))
    keys = bounds[1] if bounds[1] is not None else k.shape[-3]
    bound = st.one_of(st.none(), st.integers(0, most))
    return Problem(
        q, k, v, *offsets, *bounds,
        qk_scale=spread / math.sqrt(dim),
        out_scale=draw(st.sampled_from((1.0, -0.5, 4.0))) / max(1, keys),
        window=draw(st.sampled_from(((None, None), None))) or (draw(bound), draw(bound)),
        needs=draw(st.sampled_from([tuple(bool(n & 1 << i) for i in range(3)) for n in range(1, 8)])),
        seed=seed,
    )  # fmt: skip
