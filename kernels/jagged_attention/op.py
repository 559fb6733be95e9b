"""Jagged attention as torch operators: schema, shapes, gradient, FLOPs, and the function that one calls."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from faceter.kernels.autocast import autocast_tensors
from faceter.kernels.flops import visible_pairs
from faceter.kernels.implementations import Choice, Implementation, Problem, Registry, always, on_cpu, portable_triton
from faceter.kernels.operands import batch_size, check, check_contents, window_bounds
from faceter.kernels.schedule.op import cached_tile_list
from faceter.kernels.transforms import refuse_transforms

_PACKAGE = "faceter.kernels.jagged_attention"
REGISTRY = Registry(
    "jagged_attention",
    [
        Implementation(
            "cpu", f"{_PACKAGE}.cpu", "jagged_attention_forward_cpu", "jagged_attention_backward_cpu", on_cpu
        ),
        Implementation(
            "triton",
            f"{_PACKAGE}.triton",
            "jagged_attention_forward_triton",
            "jagged_attention_backward_triton",
            portable_triton,
        ),
        Implementation(
            "reference",
            f"{_PACKAGE}.reference",
            "jagged_attention_forward_reference",
            "jagged_attention_backward_reference",
            always,
        ),
    ],
)


@torch.library.custom_op("faceter::jagged_attention_forward", mutates_args=())
def jagged_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    bias: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
    impl: str,
) -> tuple[Tensor, Tensor]:
    """(o, lse) of `jagged_attention`, with nothing left to default. left, right: -1 = no bound. impl: "" = the first
    that can."""
    check_contents(q, k, q_offsets, kv_offsets, max_q, max_kv)
    args = (q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv)
    return REGISTRY.run("forward", Problem.of(q), impl, *args, qk_scale, out_scale, left, right)


@torch.library.custom_op("faceter::jagged_attention_backward", mutates_args=())
def jagged_attention_backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    kv_offsets: Tensor | None,
    bias: Tensor | None,
    q_schedule: Tensor | None,
    kv_schedule: Tensor | None,
    max_q: int,
    max_kv: int,
    qk_scale: float,
    out_scale: float,
    left: int,
    right: int,
    impl: str,
    dq_wanted: bool,
    dkv_wanted: bool,
    dbias_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dbias) of `jagged_attention_forward`, (0,) for what isn't wanted. grad_lse: None = zeros."""
    args = (grad, grad_lse, o, lse, q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv)
    options = (qk_scale, out_scale, left, right, dq_wanted, dkv_wanted, dbias_wanted)
    return REGISTRY.run("backward", Problem.of(q), impl, *args, *options)


@jagged_attention_forward.register_fake
def _(q, k, v, q_offsets, kv_offsets, *_):
    shape = q.shape if q_offsets is not None else (batch_size(q, k, q_offsets, kv_offsets), *q.shape[-3:])
    return q.new_empty(shape), q.new_empty(shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))


@jagged_attention_backward.register_fake
def _(grad, grad_lse, o, lse, q, k, v, q_offsets, kv_offsets, bias, *options):
    *_, dq_wanted, dkv_wanted, dbias_wanted = options
    inputs = ((q, dq_wanted), (k, dkv_wanted), (v, dkv_wanted), (bias, dbias_wanted))
    return tuple(x.new_empty(x.shape) if wanted else q.new_empty(0) for x, wanted in inputs)


def _setup_context(ctx, inputs, output):
    q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, *options = inputs
    ctx.save_for_backward(*output, q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule)
    ctx.options = options
    ctx.set_materialize_grads(False)  # of lse there mostly is none


def _backward(ctx, grad, grad_lse):
    saved = ctx.saved_tensors  # once: checkpoint computes them at each access
    if grad is None:
        grad = torch.zeros_like(saved[0])
    needs = ctx.needs_input_grad
    wanted = (needs[0], needs[1] or needs[2], needs[5])
    gradients = jagged_attention_backward(grad, grad_lse, *saved, *ctx.options, *wanted)
    dq, dk, dv, dbias = (g if needs[i] else None for g, i in zip(gradients, (0, 1, 2, 5), strict=True))
    return (dq, dk, dv, None, None, dbias, *(None,) * 9)


jagged_attention_forward.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.faceter.jagged_attention_forward, get_raw=True)
def _forward_flops(
    q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv, s, o, left, right, *_, **__
):
    return 4 * q.shape[-1] * q.shape[-2] * visible_pairs(q, k, q_offsets, kv_offsets, left, right)


@register_flop_formula(torch.ops.faceter.jagged_attention_backward, get_raw=True)
def _backward_flops(grad, grad_lse, o, lse, *args, **kwargs):
    return 5 * _forward_flops(*args, **kwargs) // 2


def _check_bias(q: Tensor, bias: Tensor, batch: int, max_q: int, max_kv: int) -> None:
    if bias.dim() != 4 or bias.shape[2:] != (max_q, max_kv) or not _fits(bias, batch, q.shape[-2]):
        raise ValueError(
            f"bias must be (B or 1, H or 1, max_q, max_kv) = {(batch, q.shape[-2], max_q, max_kv)}, "
            f"is {tuple(bias.shape)}"
        )
    if bias.dtype not in (q.dtype, torch.float32):
        raise TypeError(f"bias must be {q.dtype}, as q is, or float32, is {bias.dtype}")
    if bias.device != q.device:
        raise ValueError(f"bias is on {bias.device}, q is on {q.device}: put it there")


def _fits(bias: Tensor, batch: int, heads: int) -> bool:
    return all(n == 1 or n == wanted for n, wanted in zip(bias.shape[:2], (batch, heads), strict=True))


def jagged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_offsets: Tensor | None = None,
    kv_offsets: Tensor | None = None,
    max_q: int | None = None,
    max_kv: int | None = None,
    bias: Tensor | None = None,
    qk_scale: float | None = None,
    out_scale: float = 1.0,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    return_lse: bool = False,
    impl: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """out_scale * softmax(qk_scale * q k^T + bias) v, for each example and head.

    Source: attention, arXiv 1706.03762; with q shared by the batch, pooling by seeds (PMA) of arXiv 1810.00825.
    Differentiable in q, k, v and bias. Under autocast these are cast as for a matmul, but a float32 bias stays.
    Sums, exponentials and, for 16-bit inputs, scores are in fp32. Gradients come from lse, whose
    digits no longer tell the keys' shares apart where scores are beyond some 1e4.

    Args:
        q: (T, H, D) with q_offsets, (B, N, H, D), or (N, H, D) shared by the batch; float64, float32, float16 or
            bfloat16.
        k, v: likewise, with kv_offsets; of the same shape, heads, head dim and dtype.
        q_offsets, kv_offsets: (B + 1,) int32 or int64, starting at 0.
        max_q, max_kv: bounds of the lengths in the offsets; needed with them.
        bias: (B or 1, H or 1, max_q, max_kv), without offsets (.., rows of q, rows of k), in q's dtype or float32;
            -inf hides a key from a row.
        qk_scale: see above; None = 1 / sqrt(D).
        out_scale: see above.
        causal: row i sees keys 0..i; the same as window = (None, 0).
        window: (left, right): row i sees keys i - left .. i + right of its example, None = no bound. Rows and keys are
            counted from the first of each.
        return_lse: also return log sum exp of the scores of each row, differentiable.
        impl: an implementation by name; see `implementations`.

    Returns:
        o: the shape of q, or (B, N, H, D) for a shared q, in its dtype. Rows past q_offsets[B] and rows that see no key
            are zero.
        lse, if asked for: the shape of o without D, float32 (float64 for float64 inputs); -inf in those rows.

    Raises:
        ValueError, TypeError: an argument does not fit; what lies in the offsets is checked under `faceter.debug()`.
        ImplementationError: the implementation asked for can't run.
    """
    refuse_transforms("jagged_attention", *(x for x in (q, k, v, bias) if x is not None))
    q, k, v = autocast_tensors(q, k, v)
    check(q, k, v, q_offsets, kv_offsets, max_q, max_kv)
    left, right = window_bounds(causal, window)
    rows = (max_q if q_offsets is not None else q.shape[-3], max_kv if kv_offsets is not None else k.shape[-3])
    if bias is not None:
        if bias.dtype != torch.float32:
            (bias,) = autocast_tensors(bias)
        _check_bias(q, bias, batch_size(q, k, q_offsets, kv_offsets), *rows)
    q_schedule = kv_schedule = None
    if q_offsets is not None:
        q_schedule = cached_tile_list(q_offsets, kv_offsets, q.shape[0])
    if kv_offsets is not None and torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        kv_schedule = cached_tile_list(kv_offsets, q_offsets, k.shape[0])
    scale = q.shape[-1] ** -0.5 if qk_scale is None else qk_scale
    o, lse = jagged_attention_forward(
        q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, *rows, scale, out_scale, left, right, impl
    )
    return (o, lse) if return_lse else o


def jagged_attention_implementation(q: Tensor, impl: str = "") -> Choice:
    """Which implementation `jagged_attention` would run for such queries, and why not a better one."""
    return REGISTRY.choose(Problem.of(q), impl)
