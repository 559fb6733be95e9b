"""Drawn inputs of attention operators: forms, lengths, layouts, dtypes, scales, windows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from faceter.kernels.operands import batch_size

FORMS = ("jagged", "dense", "shared")
LAYOUTS = ("plain", "heads first", "sliced", "dims first")
# Around the tile sizes of kernels.
EDGES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
SMALL_DIMS, LARGE_DIMS = (16, 24, 40, 64), (96, 128, 192, 256)


@dataclass(frozen=True)
class Signature:
    """What kernels are compiled anew for, besides the dtype.

    Attributes:
        forms: of queries; of keys and values.
        dim, heads: D, H.
        layouts: of q, k, v.
        windowed: whether there is a window.
        negative: whether qk_scale is below 0.
        number: its place in SIGNATURES, by which operators choose what else they compile for; None if it was drawn
            freely.
    """

    forms: tuple[str, str]
    dim: int
    heads: int
    layouts: tuple[str, str, str]
    windowed: bool
    negative: bool
    number: int | None = None


# All that is drawn on a GPU, where each costs seconds of compilation: every pair of forms, layout of each of q, k, v,
# head dim, and all else at least once.
SIGNATURES = tuple(
    Signature(*what, number)
    for number, what in enumerate(
        (
            (("jagged", "jagged"), 64, 2, ("plain", "plain", "plain"), False, False),
            (("jagged", "dense"), 128, 3, ("sliced", "sliced", "sliced"), False, False),
            (("jagged", "shared"), 24, 1, ("heads first", "dims first", "plain"), True, True),
            (("dense", "jagged"), 96, 2, ("plain", "heads first", "sliced"), True, False),
            (("dense", "dense"), 16, 3, ("dims first", "plain", "heads first"), False, True),
            (("dense", "shared"), 192, 2, ("sliced", "plain", "dims first"), False, False),
            (("shared", "jagged"), 64, 3, ("plain", "sliced", "plain"), False, False),
            (("shared", "dense"), 256, 1, ("heads first", "plain", "sliced"), True, False),
            (("jagged", "jagged"), 40, 3, ("sliced", "heads first", "dims first"), True, False),
        )
    )
)


@dataclass
class Problem:
    """Inputs of one call.

    Attributes:
        q, k, v: in any of the forms.
        q_offsets, kv_offsets, max_q, max_kv: as the operators take them.
        qk_scale, out_scale, window: likewise.
        needs: which of q, k, v need a gradient.
        seed: of the output's gradient.
        signature: what of it kernels are compiled for.
        bias: of the operators that take one, (B or 1, H or 1, max_q, max_kv).
        bias_needs: whether it needs a gradient.
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
    signature: Signature
    bias: Tensor | None = None
    bias_needs: bool = False

    @property
    def options(self) -> dict:
        names = ("q_offsets", "kv_offsets", "max_q", "max_kv", "qk_scale", "out_scale", "window")
        return {name: getattr(self, name) for name in names}

    def double(self) -> Problem:
        """The same numbers in float64, contiguous."""
        q, k, v = (x.detach().double().contiguous() for x in (self.q, self.k, self.v))
        bias = None if self.bias is None else self.bias.detach().double().contiguous()
        return dataclasses.replace(self, q=q, k=k, v=v, bias=bias)

    @property
    def batch(self) -> int:
        """B."""
        return batch_size(self.q, self.k, self.q_offsets, self.kv_offsets)

    @property
    def rows(self) -> tuple[int, int]:
        """The most rows that an example may have, of queries and of keys."""
        return (
            self.q.shape[-3] if self.q_offsets is None else self.max_q,
            self.k.shape[-3] if self.kv_offsets is None else self.max_kv,
        )

    def inputs(self, needed: bool = False) -> dict[str, Tensor]:
        """Name -> what a gradient can be asked for of, detached: all of it requires one, or what `needs` says."""
        found = {name: (x, need) for name, x, need in zip("qkv", self.tensors, self.needs, strict=True)}
        if self.bias is not None:
            found["bias"] = (self.bias, self.bias_needs)
        return {name: x.detach().requires_grad_(need or not needed) for name, (x, need) in found.items()}

    def of_examples(self, order: list[int]) -> Problem:
        """The problem of these examples alone, in this order, if queries and keys are rows of the same ones."""
        offsets = self.q_offsets.tolist()
        rows = rows_of_examples(self.q_offsets, order)
        q, k, v = (x[rows] for x in self.tensors)
        moved = offsets_of([offsets[b + 1] - offsets[b] for b in order], self.q_offsets.dtype, self.q.device)
        bias = self.bias if self.bias is None or self.bias.shape[0] == 1 else self.bias[order]
        return dataclasses.replace(self, q=q, k=k, v=v, q_offsets=moved, kv_offsets=moved, bias=bias)

    def with_tensors(self, q: Tensor, k: Tensor, v: Tensor) -> Problem:
        """The same of other tensors, which may have more or fewer rows past the last example."""
        return dataclasses.replace(self, q=q, k=k, v=v)

    def __repr__(self) -> str:
        """What a failing example shows: shapes and lengths instead of numbers."""
        parts = [
            f"{n} {tuple(x.shape)} strides {x.stride()} {x.dtype}" for n, x in zip("qkv", self.tensors, strict=True)
        ]
        if self.bias is not None:
            parts.append(f"bias {tuple(self.bias.shape)} strides {self.bias.stride()} {self.bias.dtype}")
        for name in ("q_offsets", "kv_offsets"):
            offsets = getattr(self, name)
            if offsets is not None:
                parts.append(f"{name} {offsets.tolist()} {offsets.dtype}")
        names = ("max_q", "max_kv", "qk_scale", "out_scale", "window", "needs", "bias_needs", "seed")
        return "Problem(" + ", ".join(parts + [f"{n}={getattr(self, n)}" for n in names]) + ")"

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(repr(self))  # Hypothesis would print the fields

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v


def offsets_of(lengths: list[int], dtype: torch.dtype = torch.int64, device: str = "cpu") -> Tensor:
    """(B + 1,): 0 and the running sums."""
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()], dtype=dtype, device=device)


def rows_of_examples(offsets: Tensor, order: list[int]) -> Tensor:
    """The rows of the examples in this order, one after the other."""
    ends = offsets.tolist()
    parts = [torch.arange(ends[b], ends[b + 1]) for b in order]
    return torch.cat([*parts, torch.arange(0)]).to(offsets.device)


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
def signatures(draw, device: str, dims: tuple[int, ...], among: Sequence[Signature]) -> Signature:
    """One of `among` on a GPU, anything with one of these head dims elsewhere."""
    if torch.device(device).type != "cpu":
        return draw(st.sampled_from(among))
    forms = [draw(st.sampled_from(FORMS)) for _ in range(2)]
    if forms == ["shared", "shared"]:
        forms[draw(st.integers(0, 1))] = draw(st.sampled_from(FORMS[:2]))
    dim, heads = draw(st.sampled_from(dims)), draw(st.integers(1, 3))
    layouts = tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(3))
    return Signature(
        tuple(forms), dim, heads, layouts, draw(st.booleans()), draw(st.sampled_from((False, False, True)))
    )


@st.composite
def windows(draw, most: int) -> tuple[int | None, int | None]:
    """(left, right), at least one of them a bound."""
    # At tile sizes a window ends with a tile, or a row before or after.
    edge = st.builds(lambda tiles, rows: max(0, 16 * tiles + rows), st.integers(0, most // 16), st.integers(-2, 1))
    bound = st.one_of(edge, st.integers(0, most))
    return draw(st.one_of(st.tuples(bound, bound), st.tuples(bound, st.none()), st.tuples(st.none(), bound)))


@st.composite
def problems(
    draw,
    dtypes: tuple[torch.dtype, ...],
    device: str = "cpu",
    most: int = 130,
    dims: tuple[int, ...] = SMALL_DIMS,
    same_offsets: bool = False,
    normalised: bool = False,
    among: Sequence[Signature] = SIGNATURES,
) -> Problem:
    """A problem.

    Args:
        dtypes: to draw from.
        device: of the tensors.
        most: rows of an example.
        dims: head dims to draw from; not on a GPU.
        same_offsets: self-attention: queries and keys are rows of the same examples.
        normalised: of an operator whose weights of the keys sum to one; else out_scale has their number in it.
        among: what a signature is drawn from on a GPU; elsewhere it may be anything.
    """
    dtype, signature = draw(st.sampled_from(dtypes)), draw(signatures(device, dims, among))
    if same_offsets:
        signature = dataclasses.replace(signature, forms=("jagged", "jagged"))
    heads, dim = signature.heads, signature.dim
    batch, seed = draw(st.integers(0, 4)), draw(st.integers(0, 2**31 - 1))
    if batch == 0 and "dense" in signature.forms:
        batch = 1
    generator = torch.Generator().manual_seed(seed)
    shapes, offsets, bounds, rows = [], [], [], None
    for form in signature.forms:
        if form == "jagged":
            if rows is None or not same_offsets:
                rows = draw(lengths(batch, most))
                total = sum(rows) + draw(st.sampled_from((0, 0, 1, 40)))
            offsets.append(offsets_of(rows, draw(st.sampled_from((torch.int32, torch.int64))), device))
            # A bound need not be reached.
            bounds.append(max(rows, default=0) + draw(st.sampled_from((0, 0, 5))))
            shapes.append((total, heads, dim))
        else:
            n = draw(st.sampled_from([n for n in EDGES if 0 < n <= most]))
            shapes.append((batch, n, heads, dim) if form == "dense" else (n, heads, dim))
            offsets.append(None)
            bounds.append(None)
    q, k, v = (
        laid_out(torch.randn(shape, generator=generator).to(device, dtype), layout)
        for shape, layout in zip((shapes[0], shapes[1], shapes[1]), signature.layouts, strict=True)
    )
    # Standard deviation of the scores; at 10 they reach +-30.
    spread = draw(st.sampled_from((0.5, 2.0, 10.0)))
    keys = bounds[1] if bounds[1] is not None else k.shape[-3]
    return Problem(
        q, k, v, *offsets, *bounds,
        qk_scale=(-spread if signature.negative else spread) / math.sqrt(dim),
        out_scale=draw(st.sampled_from((1.0, -0.5, 4.0))) / (1 if normalised else max(1, keys)),
        window=draw(windows(most)) if signature.windowed else (None, None),
        needs=draw(st.sampled_from([tuple(bool(n & 1 << i) for i in range(3)) for n in range(1, 8)])),
        seed=seed,
        signature=signature,
    )  # fmt: skip
