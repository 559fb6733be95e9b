"""Block attention as torch operators: schema, shapes, gradient, FLOPs, and the function that one calls."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from faceter.kernels.autocast import autocast_tensors
from faceter.kernels.implementations import Choice, Implementation, Problem, Registry, always, on_cpu, portable_triton
from faceter.kernels.operands import check, check_side, check_side_contents
from faceter.kernels.schedule.op import cached_tile_list
from faceter.kernels.transforms import refuse_transforms

BLOCKS = (16, 32, 64, 128)
_PACKAGE = "faceter.kernels.block_attention"
REGISTRY = Registry(
    "block_attention",
    [
        Implementation("cpu", f"{_PACKAGE}.cpu", "block_attention_forward_cpu", "block_attention_backward_cpu", on_cpu),
        Implementation(
            "triton",
            f"{_PACKAGE}.triton",
            "block_attention_forward_triton",
            "block_attention_backward_triton",
            portable_triton,
        ),
        Implementation(
            "reference",
            f"{_PACKAGE}.reference",
            "block_attention_forward_reference",
            "block_attention_backward_reference",
            always,
        ),
    ],
)


@torch.library.custom_op("faceter::block_attention_forward", mutates_args=())
def block_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    schedule: Tensor | None,
    max_len: int,
    block: int,
    qk_scale: float,
    out_scale: float,
    impl: str,
) -> Tensor:
    """`block_attention`, with nothing left to default. impl: "" = the first that can."""
    check_side_contents("", q, offsets, max_len)
    args = (q, k, v, offsets, cos, sin, schedule, max_len, block, qk_scale, out_scale)
    return REGISTRY.run("forward", Problem.of(q), impl, *args)


@torch.library.custom_op("faceter::block_attention_backward", mutates_args=())
def block_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    schedule: Tensor | None,
    max_len: int,
    block: int,
    qk_scale: float,
    out_scale: float,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of `block_attention_forward`."""
    args = (grad, q, k, v, offsets, cos, sin, schedule, max_len, block, qk_scale, out_scale)
    return REGISTRY.run("backward", Problem.of(q), impl, *args)


@block_attention_forward.register_fake
def _(q, *_):
    return q.new_empty(q.shape)


@block_attention_backward.register_fake
def _(grad, q, k, v, *_):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _setup_context(ctx, inputs, output):
    *tensors, max_len, block, qk_scale, out_scale, impl = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = (max_len, block, qk_scale, out_scale, impl)


def _backward(ctx, grad):
    gradients = block_attention_backward(grad, *ctx.saved_tensors, *ctx.options)
    wanted = (g if need else None for g, need in zip(gradients, ctx.needs_input_grad, strict=False))
    return (*wanted, *(None,) * 9)


block_attention_forward.register_autograd(_backward, setup_context=_setup_context)


@register_flop_formula(torch.ops.faceter.block_attention_forward, get_raw=True)
def _forward_flops(q, k, v, offsets, cos, sin, schedule, max_len, block, *_, **__):
    if offsets is None:
        whole, rest = divmod(q.shape[1], block)
        pairs = q.shape[0] * (whole * block**2 + rest**2)
    else:
        lengths = offsets.diff().long()
        pairs = int((lengths // block * block**2 + (lengths % block) ** 2).sum())
    return 4 * q.shape[-1] * q.shape[-2] * pairs


@register_flop_formula(torch.ops.faceter.block_attention_backward, get_raw=True)
def _backward_flops(grad, *args, **kwargs):
    return 5 * _forward_flops(*args, **kwargs) // 2


def _check_forms(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if offsets is None and x.dim() != 4:
            raise ValueError(f"{name} must be (B, N, H, D), or (T, H, D) with offsets, is {tuple(x.shape)} without")
    check(q, k, v, offsets, offsets, 0, 0)
    if q.shape != k.shape:
        raise ValueError(f"q and k must have the same shape, are {tuple(q.shape)} and {tuple(k.shape)}")


def _check_angles(q: Tensor, cos: Tensor | None, sin: Tensor | None) -> None:
    if cos is None and sin is None:
        return
    if q.shape[-1] % 2:
        raise ValueError(f"cos and sin turn pairs of dims, but the head dim is {q.shape[-1]}, an odd number")
    shape = (*q.shape[:-2], q.shape[-1] // 2)
    form = "(T, D / 2)" if q.dim() == 3 else "(B or 1, N, D / 2)"
    for name, x, other in (("cos", cos, "sin"), ("sin", sin, "cos")):
        if x is None:
            raise ValueError(f"{other} needs {name}: give both or none")
        fits = x.dim() == len(shape) and x.shape[1:] == shape[1:]
        if not fits or (x.shape[0] != shape[0] and (x.shape[0] != 1 or q.dim() == 3)):
            raise ValueError(f"{name} must be {form} = {shape}, is {tuple(x.shape)}")
        if x.dtype != torch.float32:
            raise TypeError(f"{name} must be float32, is {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}, q is on {q.device}: put it there")


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    offsets: Tensor | None = None,
    max_len: int | None = None,
    block: int = 64,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    qk_scale: float | None = None,
    out_scale: float = 1.0,
    impl: str = "",
) -> Tensor:
    """out_scale * softmax(qk_scale * q k^T) v within each block of rows of each example, for each head.

    An example's rows are cut into blocks of `block`, counted from its first; the last one may be shorter. With cos and
    sin, q and k are first turned by rotary embeddings (RoFormer, arXiv 2104.09864): dims i and i + D / 2 of a head, a
    pair (x, y), become (x cos - y sin, x sin + y cos). Source: blocks of 64 in Meta Engineering, 2026, "Training GEM at
    LLM scale". Differentiable in q, k and v. Under autocast the three are cast as for a matmul. Sums and angles are in
    fp32 for 16-bit inputs.

    Args:
        q, k, v: (T, H, D) with offsets, or (B, N, H, D); float64, float32, float16 or bfloat16.
        offsets: (B + 1,) int32 or int64, starting at 0.
        max_len: a bound of the lengths in the offsets; needed with them.
        block: rows of a block: 16, 32, 64 or 128.
        cos, sin: (T, D / 2) with offsets, or (B or 1, N, D / 2), float32: of each row's angles, for all heads.
        qk_scale: see above; None = 1 / sqrt(D).
        out_scale: see above.
        impl: an implementation by name; see `implementations`.

    Returns:
        the shape of q, in its dtype. Rows past offsets[B] are zero.

    Raises:
        ValueError, TypeError: an argument does not fit; what lies in the offsets is checked under `faceter.debug()`.
        ImplementationError: the implementation asked for can't run.
    """
    refuse_transforms("block_attention", *(x for x in (q, k, v, cos, sin) if x is not None))
    q, k, v = autocast_tensors(q, k, v)
    check_side("", offsets, max_len, q.device)
    _check_forms(q, k, v, offsets)
    if block not in BLOCKS:
        raise ValueError(f"block must be one of {', '.join(map(str, BLOCKS))}, is {block}")
    _check_angles(q, cos, sin)
    schedule = None if offsets is None else cached_tile_list(offsets, None, q.shape[0])
    rows = max_len if offsets is not None else q.shape[1]
    scale = q.shape[-1] ** -0.5 if qk_scale is None else qk_scale
    return block_attention_forward(q, k, v, offsets, cos, sin, schedule, rows, block, scale, out_scale, impl)


def block_attention_implementation(q: Tensor, impl: str = "") -> Choice:
    """Which implementation `block_attention` would run for such queries, and why not a better one."""
    return REGISTRY.choose(Problem.of(q), impl)
