"""Portable Triton kernels of GDPA, forward and backward.

Backward is two kernels without atomics: dq by query tiles, dk and dv by key tiles; both compute the scores again. A
side that the batch shares gets its gradient from a few programs for each tile, which go through a share of the examples
each and leave partial sums. So every run gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from faceter.kernels import tuning
from faceter.kernels.activations import heads_by_activation
from faceter.kernels.attention_launch import Launch, gradient_of, shares, summed
from faceter.kernels.operands import Side
from faceter.kernels.triton_activations import activate, activate_with_derivative
from faceter.kernels.triton_launch import (
    EXACT_TILES,
    NUMBERS,
    has_hardware_tanh,
    head_list,
    strides,
    tile_configs,
    with_dense_rows,
)
from faceter.kernels.triton_tiles import (
    dot,
    find_tile,
    in_window,
    keys_in_reach,
    load_rows,
    other_rows,
    own_count,
    own_rows,
    store_rows,
)


@triton.jit
def _forward_step(
    acc, q, k_base, v_base, k_st, v_st, row, n, kv_count, qk_scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    ACT: tl.constexpr, FAST: tl.constexpr, MASK: tl.constexpr, WINDOW: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = load_rows(k_base, k_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    s = dot(q, tl.trans(k), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), UPCAST, PRECISION)
    p = activate(s * qk_scale, ACT, FAST)
    if WINDOW:
        seen = in_window(row + tl.arange(0, BLOCK_M)[:, None], n + tl.arange(0, BLOCK_N)[None, :], left, right)
        p = tl.where(seen, p, 0.0)
    v = load_rows(v_base, v_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    return dot(p.to(v.dtype), v, acc, UPCAST, PRECISION)


@triton.jit(do_not_specialize=NUMBERS)
def gdpa_forward_kernel(
    q, k, v, o, q_offsets, kv_offsets, schedule, head_list,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, o_sb, o_st, o_sh,
    batch, q_rows, q_total, kv_rows, kv_total, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACT: tl.constexpr, FAST: tl.constexpr, Q_JAGGED: tl.constexpr, KV_JAGGED: tl.constexpr,
    ITEM: tl.constexpr, SCHEDULED: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    example, row = find_tile(schedule, program // HEADS, q_rows, BLOCK_M, ITEM, SCHEDULED)
    if example < 0:
        return
    head = tl.load(head_list + program % HEADS).to(tl.int64)
    q_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
    if row >= q_count:
        return
    k_start, kv_count = other_rows(kv_offsets, example, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
    v_start, _ = other_rows(kv_offsets, example, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
    k_base, v_base = k + k_start + head * k_sh, v + v_start + head * v_sh

    first, last = keys_in_reach(row, kv_count, left, right, BLOCK_M, BLOCK_N, WINDOW)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    x = load_rows(q + q_start + head * q_sh, q_st, row, q_count, BLOCK_M, D, BLOCK_D, True)
    # Whole tiles of keys, then the rest. Keys past the last are zeros there, and f(0) = 0.
    whole = first + tl.maximum(last - first, 0) // BLOCK_N * BLOCK_N
    for n in range(first, whole, BLOCK_N):
        acc = _forward_step(
            acc, x, k_base, v_base, k_st, v_st, row, n, kv_count, qk_scale, left, right,
            BLOCK_M, BLOCK_N, D, BLOCK_D, ACT, FAST, False, WINDOW, UPCAST, PRECISION,
        )  # fmt: skip
    if whole < last:
        acc = _forward_step(
            acc, x, k_base, v_base, k_st, v_st, row, whole, kv_count, qk_scale, left, right,
            BLOCK_M, BLOCK_N, D, BLOCK_D, ACT, FAST, True, WINDOW, UPCAST, PRECISION,
        )  # fmt: skip
    o_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, o_sb, o_st, Q_JAGGED)
    store_rows(o + o_start + head * o_sh, o_st, row, q_count, acc * out_scale, BLOCK_M, D, BLOCK_D)


@triton.jit
def _dq_step(
    acc, q, do, k_base, v_base, k_st, v_st, row, n, kv_count, qk_scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    ACT: tl.constexpr, FAST: tl.constexpr, MASK: tl.constexpr, WINDOW: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = load_rows(k_base, k_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    v = load_rows(v_base, v_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    s = dot(q, tl.trans(k), zero, UPCAST, PRECISION)
    dp = dot(do, tl.trans(v), zero, UPCAST, PRECISION)
    _, slope = activate_with_derivative(s * qk_scale, ACT, FAST)
    ds = slope * dp
    if WINDOW:
        seen = in_window(row + tl.arange(0, BLOCK_M)[:, None], n + tl.arange(0, BLOCK_N)[None, :], left, right)
        ds = tl.where(seen, ds, 0.0)
    return dot(ds.to(k.dtype), k, acc, UPCAST, PRECISION)


@triton.jit(do_not_specialize=NUMBERS)
def gdpa_dq_kernel(
    do, q, k, v, dq, q_offsets, kv_offsets, schedule, head_list,
    do_sb, do_st, do_sh, q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, dq_sb, dq_st, dq_sh,
    batch, share, q_rows, q_total, kv_rows, kv_total, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACT: tl.constexpr, FAST: tl.constexpr, Q_JAGGED: tl.constexpr, Q_SHARED: tl.constexpr, KV_JAGGED: tl.constexpr,
    ITEM: tl.constexpr, SCHEDULED: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    # Of shared queries an item is a tile and a share of the examples.
    example, row = find_tile(schedule, program // HEADS, q_rows, BLOCK_M, ITEM, SCHEDULED)
    if example < 0:
        return
    head = tl.load(head_list + program % HEADS).to(tl.int64)
    q_count = own_count(q_offsets, example, batch, q_rows, q_total, Q_JAGGED)
    if row >= q_count:
        return
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    begin, examples = example, 1
    if Q_SHARED:
        begin = example * share
        examples = tl.minimum(share, batch - begin)
    for e in range(examples):
        b = begin + e
        q_start, _ = own_rows(q_offsets, b, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
        do_start, _ = own_rows(q_offsets, b, batch, q_rows, q_total, do_sb, do_st, Q_JAGGED)
        k_start, kv_count = other_rows(kv_offsets, b, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
        v_start, _ = other_rows(kv_offsets, b, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
        k_base, v_base = k + k_start + head * k_sh, v + v_start + head * v_sh
        first, last = keys_in_reach(row, kv_count, left, right, BLOCK_M, BLOCK_N, WINDOW)
        x = load_rows(q + q_start + head * q_sh, q_st, row, q_count, BLOCK_M, D, BLOCK_D, True)
        y = load_rows(do + do_start + head * do_sh, do_st, row, q_count, BLOCK_M, D, BLOCK_D, True)
        whole = first + tl.maximum(last - first, 0) // BLOCK_N * BLOCK_N
        for n in range(first, whole, BLOCK_N):
            acc = _dq_step(
                acc, x, y, k_base, v_base, k_st, v_st, row, n, kv_count, qk_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, ACT, FAST, False, WINDOW, UPCAST, PRECISION,
            )  # fmt: skip
        if whole < last:
            acc = _dq_step(
                acc, x, y, k_base, v_base, k_st, v_st, row, whole, kv_count, qk_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, ACT, FAST, True, WINDOW, UPCAST, PRECISION,
            )  # fmt: skip
    dq_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, dq_sb, dq_st, Q_JAGGED)
    store_rows(dq + dq_start + head * dq_sh, dq_st, row, q_count, acc * (qk_scale * out_scale), BLOCK_M, D, BLOCK_D)


@triton.jit
def _dkv_step(
    dk, dv, k, v, q_base, do_base, q_st, do_st, row, m, q_count, qk_scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    ACT: tl.constexpr, FAST: tl.constexpr, MASK: tl.constexpr, WINDOW: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    q = load_rows(q_base, q_st, m, q_count, BLOCK_M, D, BLOCK_D, MASK)
    do = load_rows(do_base, do_st, m, q_count, BLOCK_M, D, BLOCK_D, MASK)
    zero = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    s = dot(k, tl.trans(q), zero, UPCAST, PRECISION)
    dp = dot(v, tl.trans(do), zero, UPCAST, PRECISION)
    p, slope = activate_with_derivative(s * qk_scale, ACT, FAST)
    ds = slope * dp
    if WINDOW:
        seen = in_window(m + tl.arange(0, BLOCK_M)[None, :], row + tl.arange(0, BLOCK_N)[:, None], left, right)
        p, ds = tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)
    dv = dot(p.to(do.dtype), do, dv, UPCAST, PRECISION)
    dk = dot(ds.to(q.dtype), q, dk, UPCAST, PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=NUMBERS)
def gdpa_dkv_kernel(
    do, q, k, v, dk, dv, q_offsets, kv_offsets, schedule, head_list,
    do_sb, do_st, do_sh, q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, dk_sb, dk_st, dk_sh, dv_sb, dv_st, dv_sh,
    batch, share, q_rows, q_total, kv_rows, kv_total, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACT: tl.constexpr, FAST: tl.constexpr, Q_JAGGED: tl.constexpr, KV_JAGGED: tl.constexpr, KV_SHARED: tl.constexpr,
    ITEM: tl.constexpr, SCHEDULED: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    example, row = find_tile(schedule, program // HEADS, kv_rows, BLOCK_N, ITEM, SCHEDULED)
    if example < 0:
        return
    head = tl.load(head_list + program % HEADS).to(tl.int64)
    kv_count = own_count(kv_offsets, example, batch, kv_rows, kv_total, KV_JAGGED)
    if row >= kv_count:
        return
    k_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    v_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    begin, examples = example, 1
    if KV_SHARED:
        begin = example * share
        examples = tl.minimum(share, batch - begin)
    for e in range(examples):
        b = begin + e
        k_start, _ = own_rows(kv_offsets, b, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
        v_start, _ = own_rows(kv_offsets, b, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
        q_start, q_count = other_rows(q_offsets, b, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
        do_start, _ = other_rows(q_offsets, b, batch, q_rows, q_total, do_sb, do_st, Q_JAGGED)
        q_base, do_base = q + q_start + head * q_sh, do + do_start + head * do_sh
        # Key j is seen by queries j - right .. j + left.
        first, last = keys_in_reach(row, q_count, right, left, BLOCK_N, BLOCK_M, WINDOW)
        x = load_rows(k + k_start + head * k_sh, k_st, row, kv_count, BLOCK_N, D, BLOCK_D, True)
        y = load_rows(v + v_start + head * v_sh, v_st, row, kv_count, BLOCK_N, D, BLOCK_D, True)
        whole = first + tl.maximum(last - first, 0) // BLOCK_M * BLOCK_M
        for m in range(first, whole, BLOCK_M):
            k_acc, v_acc = _dkv_step(
                k_acc, v_acc, x, y, q_base, do_base, q_st, do_st, row, m, q_count, qk_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, ACT, FAST, False, WINDOW, UPCAST, PRECISION,
            )  # fmt: skip
        if whole < last:
            k_acc, v_acc = _dkv_step(
                k_acc, v_acc, x, y, q_base, do_base, q_st, do_st, row, whole, q_count, qk_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, ACT, FAST, True, WINDOW, UPCAST, PRECISION,
            )  # fmt: skip
    dk_start, kv_count = own_rows(kv_offsets, example, batch, kv_rows, kv_total, dk_sb, dk_st, KV_JAGGED)
    dv_start, kv_count = own_rows(kv_offsets, example, batch, kv_rows, kv_total, dv_sb, dv_st, KV_JAGGED)
    store_rows(dk + dk_start + head * dk_sh, dk_st, row, kv_count, k_acc * (qk_scale * out_scale), BLOCK_N, D, BLOCK_D)
    store_rows(dv + dv_start + head * dv_sh, dv_st, row, kv_count, v_acc * out_scale, BLOCK_N, D, BLOCK_D)


_FORWARD = tile_configs(
    (64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 32, 8, 2), (128, 64, 4, 2),
    (64, 32, 8, 2), (32, 64, 4, 2), (32, 32, 4, 1), (16, 64, 4, 2), (16, 32, 4, 1),
)  # fmt: skip
_DQ = tile_configs(
    (64, 32, 4, 2), (64, 64, 4, 2), (64, 32, 4, 3), (128, 32, 8, 2), (128, 64, 8, 2), (64, 32, 8, 2), (32, 64, 4, 2),
    (32, 32, 8, 1), (32, 32, 4, 1), (16, 64, 4, 2), (16, 32, 4, 1), (16, 16, 4, 1),
)  # fmt: skip
_DKV = tile_configs(
    (32, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 2), (32, 128, 8, 2), (32, 64, 8, 2), (64, 64, 8, 2), (32, 32, 8, 2),
    (32, 32, 4, 2), (32, 32, 4, 1), (64, 16, 4, 2), (16, 64, 8, 2), (32, 16, 8, 2), (16, 32, 4, 1), (16, 16, 8, 2),
    (16, 16, 4, 1),
)  # fmt: skip
# Of each kernel by bits of an element, for `tuning.run`.
CANDIDATES = {
    "gdpa_forward_kernel": {16: _FORWARD, 32: EXACT_TILES},
    "gdpa_dq_kernel": {16: _DQ, 32: EXACT_TILES},
    "gdpa_dkv_kernel": {16: _DKV, 32: EXACT_TILES},
}


class _Launch(Launch):
    """A problem with its activations, each of which is a launch of its own for the heads that it is of."""

    def __init__(self, q, k, v, q_offsets, kv_offsets, max_q, max_kv, activation, *numbers):
        super().__init__(q, k, v, q_offsets, kv_offsets, max_q, max_kv, *numbers)
        self.activation = activation

    def run(self, kernel, side: Side, block: str, copies: int, *before, schedule: Tensor, after: tuple, **constants):
        """Launches a kernel over the tiles of a side; arguments as in `Launch.over_tiles`, after: up to the sizes."""
        constants["FAST"] = self.q.dtype != torch.float32 and has_hardware_tanh(self.q.device)
        variant = "window" if self.constants["WINDOW"] else ""
        for name, heads in heads_by_activation(self.activation, self.heads).items():
            launch = self.over_tiles(
                kernel, side, block, copies, len(heads), before, schedule,
                (head_list(tuple(heads), self.q.device), *after, *self.sizes), ACT=name, **constants,
            )  # fmt: skip
            rows, loop = side.rows, self.other(side).rows
            tuning.run(kernel, CANDIDATES[kernel.__name__], launch, self.q, variant, rows, loop)


def gdpa_forward_triton(
    q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv, activation, qk_scale, out_scale, left, right
) -> Tensor:
    """As `op.gdpa_forward`."""
    launch = _Launch(q, k, v, q_offsets, kv_offsets, max_q, max_kv, activation, qk_scale, out_scale, left, right)
    out = torch.empty(launch.output_shape, dtype=q.dtype, device=q.device)
    operands = (launch.q, launch.k, launch.v, out)
    launch.run(
        gdpa_forward_kernel, launch.q_side, "BLOCK_M", launch.batch, *operands,
        schedule=launch.schedule_of(launch.q_side, q_schedule), after=(*strides(*operands), launch.batch),
    )  # fmt: skip
    return out


def gdpa_backward_triton(
    grad, q, k, v, q_offsets, kv_offsets, q_schedule, kv_schedule, max_q, max_kv, activation, qk_scale, out_scale, left,
    right,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `op.gdpa_backward`."""
    launch = _Launch(q, k, v, q_offsets, kv_offsets, max_q, max_kv, activation, qk_scale, out_scale, left, right)
    q_side, kv_side, batch = launch.q_side, launch.kv_side, launch.batch
    operands = (with_dense_rows(grad), launch.q, launch.k, launch.v)

    count, share = shares(q_side, batch, launch.heads, q.device)
    dq = gradient_of(q, q_side, count)
    launch.run(
        gdpa_dq_kernel, q_side, "BLOCK_M", count, *operands, dq,
        schedule=launch.schedule_of(q_side, q_schedule), after=(*strides(*operands, dq), batch, share),
        Q_SHARED=q_side.shared,
    )  # fmt: skip

    count, share = shares(kv_side, batch, launch.heads, q.device)
    dk, dv = gradient_of(k, kv_side, count), gradient_of(v, kv_side, count)
    launch.run(
        gdpa_dkv_kernel, kv_side, "BLOCK_N", count, *operands, dk, dv,
        schedule=launch.schedule_of(kv_side, kv_schedule), after=(*strides(*operands, dk, dv), batch, share),
        KV_SHARED=kv_side.shared,
    )  # fmt: skip
    return summed(dq, q, q_side), summed(dk, k, kv_side), summed(dv, v, kv_side)
