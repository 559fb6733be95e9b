"""GDPA as torch operators: schema, shapes, gradient, FLOPs, and the function that one calls."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from faceter.kernels.activations import names_of_heads
from faceter.kernels.autocast import autocast_tensors
from faceter.kernels.flops import visible_pairs
from faceter.kernels.implementations import Choice, Implementation, Problem, Registry, always, on_cpu, portable_triton
from faceter.kernels.operands import batch_size, check, check_contents, window_bounds
from faceter.kernels.schedule.op import cached_tile_list
from faceter.kernels.transforms import refuse_transforms

_PACKAGE = "faceter.kernels.gdpa"
REGISTRY = Registry(
    "gdpa",
    [
        Implementation("cpu", f"{_PACKAGE}.cpu", "gdpa_forward_cpu", "gdpa_backward_cpu", on_cpu),
        Implementation("triton", f"{_PACKAGE}.triton", "gdpa_forward_triton", "gdpa_backward_triton", portable_triton),
        Implementation(
            "reference", f"{_PACKAGE}.reference", "gdpa_forward_reference", "gdpa_backward_reference", always
        ),
    ],
)


@torch.library.custom_op("faceter::gdpa_forward", mutates_args=())
def gdpa_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    activation: str,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
    impl: str,
) -> Tensor:
    """`gdpa`, with nothing left to default. left, right: -1 = no bound. impl: "" = the first that can."""
    check_contents(q, k, q_offsets, kv_offsets, max_q, max_kv)
    args = (q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv)
    return REGISTRY.run("forward", Problem.of(q), impl, *args, activation, qk_scale, out_scale, left, right)


@torch.library.custom_op("faceter::gdpa_backward", mutates_args=())
def gdpa_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    activation: str,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of `gdpa_forward`."""
    args = (grad, q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv)
    return REGISTRY.run("backward", Problem.of(q), impl, *args, activation, qk_scale, out_scale, left, right)


@gdpa_forward.register_fake
def _(q, k, v, q_offsets, kv_offsets, *_):
    return q.new_empty(q.shape if q_offsets is not None else (batch_size(q, k, q_offsets, kv_offsets), *q.shape[-3:]))


@gdpa_backward.register_fake
def _(grad, q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _setup_context(ctx, inputs, output):
    *tensors, max_q, max_kv, activation, qk_scale, out_scale, left, right, impl = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = (max_q, max_kv, activation, qk_scale, out_scale, left, right, impl)


def _backward(ctx, grad):
    gradients = gdpa_backward(grad, *ctx.saved_tensors, *ctx.options)
    wanted = (g if need else None for g, need in zip(gradients, ctx.needs_input_grad, strict=False))
    return (*wanted, *(None,) * 12)


gdpa_forward.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.faceter.gdpa_forward, get_raw=True)
def _forward_flops(
    q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv, a, s, o, left, right, *_, **__
):
    return 4 * q.shape[-1] * q.shape[-2] * visible_pairs(q, k, q_offsets, kv_offsets, left, right)


@register_flop_formula(torch.ops.faceter.gdpa_backward, get_raw=True)
def _backward_flops(grad, *args, **kwargs):
    return 5 * _forward_flops(*args, **kwargs) // 2


def gdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_offsets: Tensor | None = None,
    kv_offsets: Tensor | None = None,
    max_q: int | None = None,
    max_kv: int | None = None,
    activation: str = "gelu",
    qk_scale: float = 1.0,
    out_scale: float = 1.0,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    impl: str = "",
) -> Tensor:
    """out_scale * act(qk_scale * q k^T) v, for each example and head: summed over keys, not normalised.

    Source: GDPA of Kunlun, arXiv 2602.10016. Differentiable in q, k and v. Under autocast the three are cast as for a
    matmul. Sums are in fp32 for 16-bit inputs.

    Args:
        q: (T, H, D) with q_offsets, (B, N, H, D), or (N, H, D) shared by the batch; float64, float32, float16 or
            bfloat16.
        k, v: likewise, with kv_offsets; of the same shape, heads, head dim and dtype.
        q_offsets, kv_offsets: (B + 1,) int32 or int64, starting at 0.
        max_q, max_kv: bounds of the lengths in the offsets; needed with them.
        activation: gelu, gelu_tanh, silu, relu, relu2, leaky_relu, hardswish or identity, elementwise; or one for each
            head, joined by commas.
        qk_scale, out_scale: see above.
        causal: row i sees keys 0..i; the same as window = (None, 0).
        window: (left, right): row i sees keys i - left .. i + right of its example, None = no bound. Rows and keys are
            counted from the first of each.
        impl: an implementation by name; see `implementations`.

    Returns:
        the shape of q, or (B, N, H, D) for a shared q, in its dtype. Rows past q_offsets[B] are zero.

    Raises:
        ValueError, TypeError: an argument does not fit; what lies in the offsets is checked under `faceter.debug()`.
        ImplementationError: the implementation asked for can't run.
    """
    refuse_transforms("gdpa", q, k, v)
    q, k, v = autocast_tensors(q, k, v)
    check(q, k, v, q_offsets, kv_offsets, max_q, max_kv)
    names_of_heads(activation, q.shape[-2])
    left, right = window_bounds(causal, window)
    q_schedule = kv_schedule = None
    if q_offsets is not None:
        q_schedule = cached_tile_list(q_offsets, kv_offsets, q.shape[0])
    if kv_offsets is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        kv_schedule = cached_tile_list(kv_offsets, q_offsets, k.shape[0])
    rows = (max_q if q_offsets is not None else q.shape[-3], max_kv if kv_offsets is not None else k.shape[-3])
    return gdpa_forward(
        q,
        k,
        v,
        q_offsets,
        kv_offsets,
        q_schedule,
        kv_schedule,
        *rows,
        activation,
        qk_scale,
        out_scale,
        left,
        right,
        impl,
    )


def gdpa_implementation(q: Tensor, impl: str = "") -> Choice:
    """Which implementation `gdpa` would run for such queries, and why not a better one."""
    return REGISTRY.choose(Problem.of(q), impl)
