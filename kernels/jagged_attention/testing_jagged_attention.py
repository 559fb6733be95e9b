"""Drawn biases of jagged attention, exact results, and how far an implementation may be from them.

Scores and exponentials are in the accumulator's precision, as `jagged_attention` says, never in 16 bits. Of a row with
scores s, weights P = softmax(s) and errors e of the scores, |e| <= E (their sums, the bias added, the row's maximum or
lse subtracted, a change of base):

- lse: log sum P exp(e) is between -L and L, L = log sum P exp(E), because the product of sum P exp(-E) and sum P exp(E)
  is at least 1. To that come the relative errors of the exponentials and of their sum.
- P: its logarithm is off by at most E and the error of lse, so P by P (exp(that) - 1): this holds for large errors too,
  where a first-order bound would not. To that comes the rounding of P.
- o = out_scale P v and dv = out_scale P^T do: as in `testing_bounds`.
- delta, the sum of o do over the dims, equals out_scale times the sum of P (do v^T) over the keys, and has the errors
  of both factors there. An implementation may compute it from the output that it has rounded: the sum of |do| times
  that rounding.
- dS = P (out_scale do v^T - delta + dlse): the errors of P and of the bracket, and their product, because that of P may
  be larger than P.
- dq, dk, dbias: sums over dS, as in `testing_bounds`.

A row that sees no key has o = 0, lse = -inf and no gradient.
"""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import strategies as st
from torch import Tensor

from faceter.kernels.jagged_attention.op import jagged_attention
from faceter.kernels.jagged_attention.reference import bias_of, jagged_attention_reference
from faceter.kernels.operands import Side, window_bounds
from faceter.kernels.padded_blocks import lengths_of
from faceter.kernels.reference_parts import in_window, rows_of, rows_of_output
from faceter.kernels.testing_bounds import Exact, Precision
from faceter.kernels.testing_devices import Case
from faceter.kernels.testing_problems import SIGNATURES, Problem, problems

_LAYOUTS = ("plain", "keys first", "sliced")
# On a GPU, where each costs seconds of compilation, the signatures that may have a bias: whether it is of each example,
# of each head, float32 whatever q is; its layout.
_BIASES = {
    1: (True, True, False, "plain"),
    2: (True, False, True, "keys first"),
    3: (False, True, False, "sliced"),
    6: (False, False, True, "plain"),
    8: (True, True, True, "sliced"),
}


@st.composite
def biased(draw, problem: Problem, of_each_example: bool = False) -> Problem:
    """The problem with a bias; without one on a GPU if its signature has none.

    What no example has a row and a key for is NaN. Some elements are -inf, and all those of a few rows.

    Args:
        problem: without a bias.
        of_each_example: a bias that the batch shares is no choice.
    """
    number = problem.signature.number
    if number is None:
        kind = draw(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.sampled_from(_LAYOUTS)))
    elif number in _BIASES:
        kind = _BIASES[number]
    else:
        return problem
    each_example, each_head, full, layout = kind
    each_example |= of_each_example
    shape = (problem.batch if each_example else 1, problem.q.shape[-2] if each_head else 1, *problem.rows)
    generator = torch.Generator().manual_seed(problem.seed + 1)
    bias = draw(st.sampled_from((1.0, 10.0))) * torch.randn(shape, generator=generator)
    if draw(st.booleans()):
        bias[torch.rand(shape, generator=generator) < 0.3] = float("-inf")
        bias[torch.rand(shape[:-1], generator=generator) < 0.1] = float("-inf")
    bias[~_used(problem, shape[0]).cpu()[:, None].expand(shape)] = float("nan")
    bias = _laid_out(bias.to(problem.q.device, torch.float32 if full else problem.q.dtype), layout)
    return dataclasses.replace(problem, bias=bias, bias_needs=draw(st.booleans()))


def drawn(case: Case, with_bias: bool) -> st.SearchStrategy[Problem]:
    """Problems with or without a bias."""
    among = [SIGNATURES[number] for number in _BIASES] if with_bias else SIGNATURES
    found = problems((case.dtype,), case.device, case.most, case.dims, normalised=True, among=among)
    return found.flatmap(biased) if with_bias else found


def _used(problem: Problem, examples: int) -> Tensor:
    """(examples, max_q, max_kv) bool: where a bias counts."""
    sides = Side.of(problem.q, problem.q_offsets, problem.max_q), Side.of(problem.k, problem.kv_offsets, problem.max_kv)
    q_there, kv_there = (
        torch.arange(rows, device=problem.q.device) < lengths_of(side, problem.batch, problem.q.device)[:, None]
        for side, rows in zip(sides, problem.rows, strict=True)
    )
    used = q_there[:, :, None] & kv_there[:, None]
    return used if examples == problem.batch else used.any(0, keepdim=True)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "keys first":
        return x.mT.contiguous().mT
    if layout == "sliced":
        wide = x.new_full((*x.shape[:-2], x.shape[-2] + 1, 2 * x.shape[-1]), float("nan"))
        part = wide[..., 1:, ::2]
        part.copy_(x)
        return part
    return x


def outputs(problem: Problem, inputs: dict[str, Tensor], impl: str) -> dict[str, Tensor]:
    """o and lse of these inputs, with the problem's options."""
    o, lse = jagged_attention(**inputs, **problem.options, return_lse=True, impl=impl)
    return {"o": o, "lse": lse}


def exact(problem: Problem, grads: dict[str, Tensor]) -> Exact:
    """By autograd through the definition, in float64.

    Args:
        problem: in any dtype.
        grads: of o, of lse or of both.
    """
    p = problem.double()
    inputs = p.inputs()
    left, right = window_bounds(False, p.window)
    o, lse = jagged_attention_reference(
        inputs["q"], inputs["k"], inputs["v"], p.q_offsets, p.kv_offsets, inputs.get("bias"), p.qk_scale, p.out_scale,
        left, right,
    )  # fmt: skip
    values = {"o": o.detach(), "lse": lse.detach()}
    grads = {name: grads[name].double() if name in grads else torch.zeros_like(x) for name, x in values.items()}
    found = [None] * len(inputs)
    if o.requires_grad:
        found = torch.autograd.grad([o, lse], list(inputs.values()), list(grads.values()), allow_unused=True)
    for (name, x), gradient in zip(inputs.items(), found, strict=True):
        values[f"d{name}"] = torch.zeros_like(x) if gradient is None else gradient
    return Exact(values, _bounds(problem, p, grads, values))


@torch.no_grad()
def _bounds(problem: Problem, p: Problem, grads: dict[str, Tensor], values: dict[str, Tensor]) -> dict[str, Tensor]:
    precision = Precision.of(problem.q.dtype)
    left, right = window_bounds(False, p.window)
    scale, out_scale = abs(p.qk_scale), abs(p.out_scale)
    bounds = {name: torch.zeros_like(value) for name, value in values.items()}
    batch, heads = p.batch, p.q.shape[-2]
    for b in range(batch):
        q, k, v = (rows_of(x, o, b) for x, o in ((p.q, p.q_offsets), (p.k, p.kv_offsets), (p.v, p.kv_offsets)))
        n, m, d = len(q), len(k), q.shape[-1]
        if n == 0 or m == 0:
            continue
        do, o = (rows_of_output(x, p.q_offsets, b) for x in (grads["o"], values["o"]))
        dlse = rows_of_output(grads["lse"], p.q_offsets, b).mT[..., None]

        s = p.qk_scale * torch.einsum("nhd,mhd->hnm", q, k)
        s_error = precision.summed(d, scale * torch.einsum("nhd,mhd->hnm", q.abs(), k.abs()))
        seen = in_window(n, m, left, right, q.device).expand(heads, n, m)
        if p.bias is not None:
            bias = bias_of(p.bias, b)[:, :n, :m].expand(heads, n, m)
            seen = seen & (bias != float("-inf"))
            bias = bias.masked_fill(~seen, 0.0)
            s_error += precision.summed(0, s.abs() + bias.abs())
            s = s + bias
        s = s.masked_fill(~seen, 0.0)
        top = s.abs().amax(-1, keepdim=True)
        s_error += precision.summed(0, s.abs() + top)
        lse = rows_of_output(values["lse"], p.q_offsets, b).mT[..., None]
        blind = lse == float("-inf")
        act = torch.exp(s - lse.masked_fill(blind, 0.0)) * seen
        log_error = torch.log((act * torch.exp(s_error)).sum(-1, keepdim=True) + blind)
        log_error += precision.summed(m + 4, torch.ones_like(top)) + precision.summed(0, top)
        act_error = act * torch.expm1(s_error + log_error) + seen * precision.rounded(act)

        dp = torch.einsum("nhd,mhd->hnm", do, v)
        dp_sum = torch.einsum("nhd,mhd->hnm", do.abs(), v.abs())
        dp_error = precision.summed(d, dp_sum) + precision.rounded(dp)
        delta = (act * p.out_scale * dp).sum(-1, keepdim=True)
        delta_error = out_scale * (act_error * dp.abs() + precision.summed(m + d, act * dp_sum)).sum(-1, keepdim=True)
        delta_error += (precision.rounded(o) * do.abs()).sum(-1).mT[..., None]
        bracket = p.out_scale * dp - delta + dlse
        bracket_error = out_scale * dp_error + delta_error
        bracket_error += precision.summed(0, out_scale * dp.abs() + delta.abs() + dlse.abs())
        ds = act * bracket
        ds_error = act * bracket_error + act_error * (bracket.abs() + bracket_error) + seen * precision.rounded(ds)

        def add(name, offsets, error, b=b):
            shared = bounds[name].dim() == 3 and offsets is None
            (bounds[name] if shared else rows_of(bounds[name], offsets, b)).add_(error)

        def product(equation, x, x_error, y, terms):
            absolute = torch.einsum(equation, x.abs(), y.abs())
            return torch.einsum(equation, x_error, y.abs()) + precision.summed(terms, absolute)

        rows_of_output(bounds["o"], p.q_offsets, b).add_(out_scale * product("hnm,mhd->nhd", act, act_error, v, m))
        rows_of_output(bounds["lse"], p.q_offsets, b).add_(log_error.masked_fill(blind, 0.0).squeeze(-1).mT)
        # A shared side adds up over the batch.
        add("dq", p.q_offsets, scale * product("hnm,mhd->nhd", ds, ds_error, k, m + batch))
        add("dk", p.kv_offsets, scale * product("hnm,nhd->mhd", ds, ds_error, q, n + batch))
        add("dv", p.kv_offsets, out_scale * product("hnm,nhd->mhd", act, act_error, do, n + batch))
        if p.bias is not None:
            error = ds_error + precision.summed(heads + batch, ds.abs())
            part = bias_of(bounds["dbias"], b)[:, :n, :m]
            part.add_(error.sum(0, keepdim=True) if len(part) == 1 else error)
    kinds = {"lse": torch.promote_types(problem.q.dtype, torch.float32)}
    if problem.bias is not None:
        kinds["dbias"] = problem.bias.dtype
    for name, value in values.items():
        finite = value.masked_fill(value == float("-inf"), 0.0)
        bounds[name] += Precision.of(kinds.get(name, problem.q.dtype)).rounded(finite)
    return bounds
