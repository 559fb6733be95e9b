"""Exact results of a GDPA problem and how far an implementation may be from them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from faceter.kernels.activations import ACTIVATIONS, names_of_heads
from faceter.kernels.gdpa.reference import gdpa_reference
from faceter.kernels.operands import window_bounds
from faceter.kernels.reference_parts import in_window, rows_of, rows_of_output
from faceter.kernels.testing_bounds import Exact, Precision
from faceter.kernels.testing_problems import SIGNATURES, Problem


def _slope(name: str, x: Tensor) -> Tensor:
    """sup |f'| on [-x, x] for x >= 0."""
    if name == "relu2":
        return 2 * x
    largest = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "hardswish": 1.5}
    return torch.full_like(x, largest.get(name, 1.0))


# sup |f''| away from kinks, and kinks with the jump of f' there.
_CURVATURE = {"gelu": 0.8, "gelu_tanh": 0.81, "silu": 0.5, "relu2": 2.0, "hardswish": 1 / 3}
_KINKS = {"relu": [(0.0, 1.0)], "leaky_relu": [(0.0, 0.99)], "hardswish": [(-3.0, 0.5), (3.0, 0.5)]}


# On a GPU, of each of SIGNATURES: each activation, and one for each head.
_OF_SIGNATURES = (
    "gelu", "gelu,silu,gelu", "silu", "gelu_tanh", "relu2", "relu", "gelu", "leaky_relu",
    "hardswish,identity,hardswish",
)  # fmt: skip
assert len(_OF_SIGNATURES) == len(SIGNATURES)


@st.composite
def activations(draw, problem: Problem) -> str:
    """An activation, as `gdpa` takes it."""
    if problem.signature.number is not None:
        return _OF_SIGNATURES[problem.signature.number]
    if draw(st.booleans()):
        return draw(st.sampled_from(list(ACTIVATIONS)))
    heads = problem.signature.heads
    return ",".join(draw(st.lists(st.sampled_from(list(ACTIVATIONS)), min_size=heads, max_size=heads)))


def exact(problem: Problem, activation: str, grad: Tensor) -> Exact:
    """By autograd through the definition, in float64.

    Args:
        problem: in any dtype.
        activation: as `gdpa` takes it.
        grad: of the output.
    """
    p = problem.double()
    left, right = window_bounds(False, p.window)
    inputs = [x.requires_grad_() for x in p.tensors]
    o = gdpa_reference(*inputs, p.q_offsets, p.kv_offsets, activation, p.qk_scale, p.out_scale, left, right)
    if o.requires_grad:
        found = torch.autograd.grad(o, inputs, grad.double(), allow_unused=True)
    else:
        found = (None, None, None)
    gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
    values = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
    return Exact(values, _bounds(p, Precision.of(problem.q.dtype), activation, grad.double(), values))


@torch.no_grad()
def _bounds(p: Problem, precision: Precision, activation: str, grad: Tensor, values: dict) -> dict[str, Tensor]:
    names = names_of_heads(activation, p.q.shape[-2])
    left, right = window_bounds(False, p.window)
    bounds = {name: torch.zeros_like(value) for name, value in values.items()}
    scale, out_scale = abs(p.qk_scale), abs(p.out_scale)
    for b in range(p.batch):
        q, k, v = rows_of(p.q, p.q_offsets, b), rows_of(p.k, p.kv_offsets, b), rows_of(p.v, p.kv_offsets, b)
        do = rows_of_output(grad, p.q_offsets, b)
        seen = in_window(len(q), len(k), left, right, q.device).double()
        n, m, d = len(q), len(k), q.shape[-1]

        s = p.qk_scale * torch.einsum("nhd,mhd->hnm", q, k)
        s_arithmetic = precision.summed(d, scale * torch.einsum("nhd,mhd->hnm", q.abs(), k.abs()))
        s_error = s_arithmetic + precision.rounded(s)
        act, slope = (
            seen * torch.stack([getattr(ACTIVATIONS[x], f)(h) for x, h in zip(names, s, strict=True)])
            for f in ("function", "derivative")
        )
        largest = torch.stack([_slope(x, h) for x, h in zip(names, s.abs() + s_error, strict=True)])
        act_error = seen * (largest * s_error + precision.rounded(act))
        slope_error = torch.zeros_like(s)
        for h, name in enumerate(names):
            slope_error[h] = _CURVATURE.get(name, 0.0) * s_error[h]
            for at, jump in _KINKS.get(name, []):
                slope_error[h] += jump * ((s[h] - at).abs() <= s_error[h])
        slope_error = seen * (slope_error + precision.rounded(slope))

        dp = torch.einsum("nhd,mhd->hnm", do, v)
        dp_error = precision.summed(d, torch.einsum("nhd,mhd->hnm", do.abs(), v.abs())) + precision.rounded(dp)
        ds = slope * dp
        ds_error = slope.abs() * dp_error + slope_error * dp.abs() + precision.rounded(ds)

        def add(name, offsets, error, b=b):
            shared = bounds[name].dim() == 3 and offsets is None
            (bounds[name] if shared else rows_of(bounds[name], offsets, b)).add_(error)

        def product(equation, x, x_error, y, terms):
            absolute = torch.einsum(equation, x.abs(), y.abs())
            return torch.einsum(equation, x_error, y.abs()) + precision.summed(terms, absolute)

        # What multiplies the scales may itself be rounded: act, ds and do times a scale.
        act_error, ds_error = act_error + precision.rounded(act), ds_error + precision.rounded(ds)
        o_error = out_scale * product("hnm,mhd->nhd", act, act_error, v, m)
        rows_of_output(bounds["o"], p.q_offsets, b).add_(o_error)
        both = scale * out_scale
        add("dq", p.q_offsets, both * product("hnm,mhd->nhd", ds, ds_error, k, m))
        add("dk", p.kv_offsets, both * product("hnm,nhd->mhd", ds, ds_error, q, n))
        add("dv", p.kv_offsets, out_scale * product("hnm,nhd->mhd", act, act_error, do, n))
    return {name: bounds[name] + precision.rounded(values[name]) for name in bounds}
