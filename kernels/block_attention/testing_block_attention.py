"""Drawn problems of block attention, exact results, and how far an implementation may be from them.

Scores and exponentials are in the accumulator's precision, and so are turns. Of each block:

- q and k, if turned: a turn's errors are those of sums of two products, and its result is rounded as `testing_bounds`
  says of intermediates. Let these errors be dq and dk.
- Scores: the error of their sums, and |qk_scale| (dq |k| + |q| dk + dq dk).
- P = softmax of scores with errors e, |e| <= E (E with what the subtraction of the row's maximum and a change of base
  add): the sum of the exponentials is off by a factor whose logarithm is between -L and L, L = log sum P exp(E),
  because the product of sum P exp(-E) and sum P exp(E) is at least 1. So P is off by at most P (exp(E + L) - 1): this
  holds for large errors too, where a first-order bound would not. To that come the relative errors of the exponentials
  and of their sum, and the rounding of P.
- o = out_scale P v and dv = out_scale P^T do: as in `testing_bounds`.
- dS = P (dP - delta), dP = do v^T, delta the sum of P dP over the keys: the errors of P and of the bracket, and their
  product, because that of P may be larger than P.
- dq and dk, of turned rows: sums over dS, with the errors dk and dq of the other factor. Turned back: |cos| and |sin|
  times these errors, and those of sums of two products.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from faceter.kernels.block_attention.op import BLOCKS, block_attention
from faceter.kernels.block_attention.reference import block_attention_reference, blocks_of, turned
from faceter.kernels.testing_bounds import Exact, Precision
from faceter.kernels.testing_devices import Case
from faceter.kernels.testing_problems import (
    EDGES,
    LAYOUTS,
    Problem,
    Signature,
    laid_out,
    lengths,
    offsets_of,
    rows_of_examples,
)

# None; of each row; of each row of a dense example, the same for all examples.
ANGLES = ("", "own", "shared")
_ANGLE_LAYOUTS = ("plain", "sliced", "dims first")


@dataclass(frozen=True)
class Kind:
    """What kernels are compiled anew for, besides the dtype.

    Attributes:
        signature: of q, k and v.
        block: as `block_attention` takes it.
        angles: one of ANGLES.
        angle_layout: of cos and sin.
    """

    signature: Signature
    block: int
    angles: str
    angle_layout: str


def _kind(form, dim, heads, layouts, negative, block, angles="", angle_layout="plain") -> Kind:
    return Kind(Signature((form, form), dim, heads, layouts, False, negative), block, angles, angle_layout)


# All that is drawn on a GPU, where each costs seconds of compilation.
KINDS = (
    _kind("jagged", 64, 2, ("plain", "plain", "plain"), False, 64),
    _kind("jagged", 128, 3, ("sliced", "sliced", "sliced"), False, 64, "own"),
    _kind("dense", 24, 1, ("heads first", "dims first", "plain"), True, 16, "shared", "dims first"),
    _kind("dense", 96, 2, ("plain", "heads first", "sliced"), False, 128),
    _kind("jagged", 192, 2, ("dims first", "plain", "heads first"), True, 32),
    _kind("dense", 256, 1, ("sliced", "plain", "dims first"), False, 64, "own", "sliced"),
    _kind("jagged", 40, 3, ("heads first", "sliced", "plain"), False, 128, "own", "dims first"),
    _kind("jagged", 16, 4, ("plain", "plain", "plain"), True, 16),
)


@dataclass(repr=False)
class BlockProblem(Problem):
    """A problem whose queries and keys are rows of the same examples, both sides' offsets and bounds the same.

    Attributes:
        block, cos, sin: as `block_attention` takes them.
    """

    block: int = 64
    cos: Tensor | None = None
    sin: Tensor | None = None

    @property
    def options(self) -> dict:
        shared = {name: getattr(self, name) for name in ("block", "cos", "sin", "qk_scale", "out_scale")}
        return {"offsets": self.q_offsets, "max_len": self.max_q, **shared}

    def of_examples(self, order: list[int]) -> BlockProblem:
        found = super().of_examples(order)
        return found if self.cos is None else found._with_angles(rows_of_examples(self.q_offsets, order))

    def with_tensors(self, q: Tensor, k: Tensor, v: Tensor) -> BlockProblem:
        """Rows past the last example have no angles: NaN."""
        found = super().with_tensors(q, k, v)
        if self.cos is None:
            return found
        angles = (x[: int(self.q_offsets[-1])] for x in (self.cos, self.sin))
        cos, sin = (torch.cat([x, x.new_full((len(q) - len(x), x.shape[1]), float("nan"))]) for x in angles)
        return dataclasses.replace(found, cos=cos, sin=sin)

    def _with_angles(self, index: Tensor) -> BlockProblem:
        return dataclasses.replace(self, cos=self.cos[index], sin=self.sin[index])

    def __repr__(self) -> str:
        angles = "" if self.cos is None else f", cos, sin {tuple(self.cos.shape)} strides {self.cos.stride()}"
        return f"{super().__repr__()[:-1]}, block={self.block}{angles})"


@st.composite
def kinds(draw, case: Case, jagged: bool, among: Sequence[Kind]) -> Kind:
    """One of `among` on a GPU, anything elsewhere; but only a jagged one if so."""
    if case.device != "cpu":
        return draw(st.sampled_from([x for x in among if not jagged or x.signature.forms[0] == "jagged"]))
    form = "jagged" if jagged else draw(st.sampled_from(("jagged", "dense")))
    dim, heads, negative = draw(st.sampled_from(case.dims)), draw(st.integers(1, 3)), draw(st.booleans())
    layouts = tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(3))
    angles = draw(st.sampled_from(ANGLES if form == "dense" else ANGLES[:2]))
    layout = draw(st.sampled_from(_ANGLE_LAYOUTS)) if angles else "plain"
    return _kind(form, dim, heads, layouts, negative, draw(st.sampled_from(BLOCKS)), angles, layout)


@st.composite
def drawn(draw, case: Case, jagged: bool = False, among: Sequence[Kind] = KINDS) -> BlockProblem:
    """A problem.

    Args:
        case: what it is for.
        jagged: with offsets; else it may have none.
        among: what a kind is drawn from on a GPU; elsewhere it may be anything.
    """
    kind = draw(kinds(case, jagged, among))
    signature = kind.signature
    heads, dim = signature.heads, signature.dim
    batch, seed = draw(st.integers(0, 4)), draw(st.integers(0, 2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    offsets = bound = None
    if signature.forms[0] == "jagged":
        rows = draw(lengths(batch, case.most))
        used = sum(rows)
        shape = (used + draw(st.sampled_from((0, 0, 1, 40))), heads, dim)
        offsets = offsets_of(rows, draw(st.sampled_from((torch.int32, torch.int64))), case.device)
        bound = max(rows, default=0) + draw(st.sampled_from((0, 0, 5)))  # need not be reached
    else:
        used = draw(st.sampled_from([n for n in EDGES if n <= case.most]))
        shape = (batch, used, heads, dim)
    q, k, v = (
        laid_out(torch.randn(shape, generator=generator).to(case.device, case.dtype), layout)
        for layout in signature.layouts
    )
    cos = sin = None
    if kind.angles:
        examples = (1,) if kind.angles == "shared" else shape[:-3]
        angles = 2 * math.pi * torch.rand((*examples, shape[-3], dim // 2), generator=generator)
        angles[..., used:, :] = float("nan")  # of rows past the last example
        cos, sin = (_angles_laid_out(x.to(case.device), kind.angle_layout) for x in (angles.cos(), angles.sin()))
    # Standard deviation of the scores; at 10 they reach +-30.
    spread = draw(st.sampled_from((0.5, 2.0, 10.0)))
    return BlockProblem(
        q, k, v, offsets, offsets, bound, bound,
        qk_scale=(-spread if signature.negative else spread) / math.sqrt(dim),
        out_scale=draw(st.sampled_from((1.0, -0.5, 4.0))),
        window=(None, None),
        needs=draw(st.sampled_from([tuple(bool(n & 1 << i) for i in range(3)) for n in range(1, 8)])),
        seed=seed,
        signature=signature,
        block=kind.block,
        cos=cos,
        sin=sin,
    )  # fmt: skip


def _angles_laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "dims first":
        return x.mT.contiguous().mT
    if layout == "sliced":
        wide = x.new_full((*x.shape[:-2], 2 * x.shape[-2], x.shape[-1] + 3), float("nan"))
        part = wide[..., ::2, 1:-2]
        part.copy_(x)
        return part
    return x


def outputs(problem: BlockProblem, inputs: dict[str, Tensor], impl: str) -> dict[str, Tensor]:
    """o of these inputs, with the problem's options."""
    return {"o": block_attention(**inputs, **problem.options, impl=impl)}


def exact(problem: BlockProblem, grads: dict[str, Tensor]) -> Exact:
    """By autograd through the definition, in float64.

    Args:
        problem: in any dtype.
        grads: of o.
    """
    p, grad = problem.double(), grads["o"].double()
    inputs = p.inputs()
    o = block_attention_reference(
        inputs["q"], inputs["k"], inputs["v"], p.q_offsets, p.cos, p.sin, p.block, p.qk_scale, p.out_scale
    )
    found = [torch.zeros_like(x) for x in inputs.values()]
    if o.requires_grad:  # else there is no block
        found = torch.autograd.grad(o, list(inputs.values()), grad)
    values = {"o": o.detach()} | {f"d{name}": x for name, x in zip(inputs, found, strict=True)}
    return Exact(values, _bounds(Precision.of(problem.q.dtype), p, grad, values))


@torch.no_grad()
def _bounds(precision: Precision, p: BlockProblem, grad: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
    scale, out_scale = abs(p.qk_scale), abs(p.out_scale)
    bounds = {name: precision.rounded(value) for name, value in values.items()}

    def turn_absolute(x, rows):
        """Of x and an angle's cos and sin without signs, whichever way it turns; x: without signs."""
        c, s = (a.abs().double().expand(*p.q.shape[:-2], -1)[rows][:, None] for a in (p.cos, p.sin))
        x, y = x.chunk(2, dim=-1)
        return torch.cat([x * c + y * s, x * s + y * c], dim=-1)

    for rows in blocks_of(p.q, p.q_offsets, p.block):
        q, k = (turned(x, p.cos, p.sin, rows) for x in (p.q, p.k))
        v, do = p.v[rows], grad[rows]
        n, d = len(q), q.shape[-1]
        q_error, k_error = torch.zeros_like(q), torch.zeros_like(k)
        if p.cos is not None:
            q_error, k_error = (
                precision.summed(2, turn_absolute(x[rows].abs(), rows)) + precision.rounded(x_turned)
                for x, x_turned in ((p.q, q), (p.k, k))
            )

        def scores(x, y):
            return torch.einsum("nhd,mhd->hnm", x, y)

        def product(x, x_error, y, y_error, equation, terms):
            absolute = torch.einsum(equation, x.abs(), y.abs())
            error = torch.einsum(equation, x_error, y.abs() + y_error) + torch.einsum(equation, x.abs(), y_error)
            return error + precision.summed(terms, absolute)

        s = p.qk_scale * scores(q, k)
        s_error = scale * product(q, q_error, k, k_error, "nhd,mhd->hnm", d)
        s_error += precision.summed(0, s.abs() + s.abs().amax(-1, keepdim=True))
        act = torch.softmax(s, dim=-1)
        log_error = torch.log((act * torch.exp(s_error)).sum(-1, keepdim=True))
        log_error += precision.summed(n + 4, torch.ones_like(log_error))
        act_error = act * torch.expm1(s_error + log_error) + precision.rounded(act)

        dp, dp_sum = scores(do, v), scores(do.abs(), v.abs())
        dp_error = precision.summed(d, dp_sum) + precision.rounded(dp)
        delta = (act * dp).sum(-1, keepdim=True)
        delta_error = act * dp_error + act_error * (dp.abs() + dp_error) + precision.summed(n, act * dp.abs())
        bracket = dp - delta
        bracket_error = dp_error + delta_error.sum(-1, keepdim=True) + precision.summed(0, dp.abs() + delta.abs())
        ds = act * bracket
        ds_error = act * bracket_error + act_error * (bracket.abs() + bracket_error) + precision.rounded(ds)

        exactly = torch.zeros_like(v)
        bounds["o"][rows] += out_scale * product(act, act_error, v, exactly, "hnm,mhd->nhd", n)
        bounds["dv"][rows] += out_scale * product(act, act_error, do, exactly, "hnm,nhd->mhd", n)
        for name, x, x_error, equation in (
            ("dq", k, k_error, "hnm,mhd->nhd"),
            ("dk", q, q_error, "hnm,nhd->mhd"),
        ):
            factor = scale * out_scale
            error = factor * product(ds, ds_error, x, x_error, equation, n)
            if p.cos is not None:
                absolute = factor * torch.einsum(equation, ds, x).abs()
                error = turn_absolute(error, rows) + precision.summed(2, turn_absolute(absolute, rows))
            bounds[name][rows] += error
    return bounds
