"""Portable Triton kernels of jagged attention, forward and backward.

Forward is one pass over the keys with a running maximum and sum. Scores are in base 2 (log2 e is folded into the scale)
or, with a bias, in its own unit: the least finite number, a usual stand-in for -inf, has no room for a factor.

Backward is kernels without atomics: dq by query tiles, dk and dv by key tiles, dbias by tiles of both; all compute the
scores again, from what one small kernel prepares for each row. A side or a bias that the batch shares gets its gradient
from a few programs for each tile, which go through a share of the examples each and leave partial sums. So every run
gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from faceter.kernels import tuning
from faceter.kernels.attention_launch import Launch, gradient_of, shares, summed
from faceter.kernels.operands import Side
from faceter.kernels.triton_launch import EXACT_TILES, NUMBERS, padded_dim, strides, tile_configs, with_dense_rows
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

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_INF = tl.constexpr(float("inf"))
# Rows of a program of the small kernel.
_ROWS = 32


@triton.jit
def _ranges(row, count, left, right, BLOCK: tl.constexpr, STEP: tl.constexpr, WINDOW: tl.constexpr):
    """(first, begin, end, last): what the tile `row` .. row + BLOCK has in reach on the other side is first .. last; of
    it begin .. end are whole steps that need no mask. Where there are none, begin = end = first."""
    first, last = keys_in_reach(row, count, left, right, BLOCK, STEP, WINDOW)
    begin, end = first, last
    if WINDOW:
        out_of_left = tl.maximum(row + BLOCK - 1 - left - first, 0)
        begin = tl.where(left < 0, first, first + tl.cdiv(out_of_left, STEP) * STEP)
        end = tl.where(right < 0, last, tl.minimum(last, row + right + 1))
    whole = tl.maximum(end - begin, 0) // STEP * STEP
    if WINDOW:
        begin = tl.where(whole > 0, begin, first)
    return first, begin, begin + whole, last


@triton.jit
def _scores(
    s, bias, i, j, kv_count, scale, left, right, MASK: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """Products of queries i and keys j, one of them a column and one a row, to scores: -inf where i does not see j.
    bias: pointers to its elements, if BIAS."""
    s = s * scale
    if BIAS:
        s += tl.load(bias).to(tl.float32)
    if MASK:
        s = tl.where(j < kv_count, s, -_INF)
    if WINDOW:
        s = tl.where(in_window(i, j, left, right), s, -_INF)
    return s


@triton.jit
def _bias_of_keys(
    bias, bias_st, bias_sk, i, n, q_count, kv_count, BLOCK_N: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr
):
    """Pointers to the bias of queries i and keys n .. n + BLOCK_N. Rows past the last point to the last one:
    what is read for them counts for nothing, so no mask is needed."""
    if BIAS:
        j = tl.arange(0, BLOCK_N)
        if MASK:
            j = tl.minimum(j, kv_count - 1 - n)
        i = tl.minimum(i, q_count - 1)
        return (bias + n * bias_sk) + ((i * bias_st)[:, None] + (j * bias_sk)[None, :])
    else:
        return bias


@triton.jit
def _within_bias(own_count, own_rows, count, rows):
    """The rows of both sides that the bias has. Lengths beyond their bounds are illegal, but read no other memory."""
    own_count = tl.minimum(own_count, own_rows)
    return own_count, tl.where(own_count > 0, tl.minimum(count, rows), 0)


@triton.jit
def _exp(x, BIAS: tl.constexpr):
    """Of differences of scores, in their unit."""
    if BIAS:
        return tl.exp2(x * _LOG2_E)
    else:
        return tl.exp2(x)


@triton.jit
def _forward_step(
    acc, top, total, q, k_base, v_base, bias, k_st, v_st, bias_st, bias_sk, row, n, q_count, kv_count,
    scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = load_rows(k_base, k_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    s = dot(q, tl.trans(k), tl.zeros((BLOCK_M, BLOCK_N), tl.float32), UPCAST, PRECISION)
    if MASK or WINDOW or BIAS:
        i, j = row + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
        bias = _bias_of_keys(bias, bias_st, bias_sk, i, n, q_count, kv_count, BLOCK_N, MASK, BIAS)
        s = _scores(s, bias, i[:, None], j[None, :], kv_count, scale, left, right, MASK, WINDOW, BIAS)
        new_top = tl.maximum(top, tl.max(s, 1))
        base = tl.where(new_top == -_INF, 0.0, new_top)  # of a row that has seen no key yet
        p = _exp(s - base[:, None], BIAS)
    else:
        new_top = tl.maximum(top, tl.max(s, 1) * scale)
        base = new_top
        p = tl.exp2(s * scale - base[:, None])
    keep = _exp(top - base, BIAS)
    v = load_rows(v_base, v_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    acc = dot(p.to(v.dtype), v, acc * keep[:, None], UPCAST, PRECISION)
    return acc, new_top, total * keep + tl.sum(p, 1)


@triton.jit(do_not_specialize=NUMBERS)
def jagged_attention_forward_kernel(
    q, k, v, bias, o, lse, q_offsets, kv_offsets, schedule,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, o_sb, o_st, o_sh, lse_sb, lse_st, lse_sh,
    bias_sb, bias_sh, bias_st, bias_sk,
    batch, q_rows, q_total, kv_rows, kv_total, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    Q_JAGGED: tl.constexpr, KV_JAGGED: tl.constexpr, ITEM: tl.constexpr, SCHEDULED: tl.constexpr,
    NEGATIVE: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    example, row = find_tile(schedule, program // HEADS, q_rows, BLOCK_M, ITEM, SCHEDULED)
    if example < 0:
        return
    q_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
    if row >= q_count:
        return
    head = (program % HEADS).to(tl.int64)
    k_start, kv_count = other_rows(kv_offsets, example, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
    v_start, _ = other_rows(kv_offsets, example, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
    k_base, v_base = k + k_start + head * k_sh, v + v_start + head * v_sh
    biased_q = q_count
    if BIAS:
        bias += example.to(tl.int64) * bias_sb + head * bias_sh
        biased_q, kv_count = _within_bias(q_count, q_rows, kv_count, kv_rows)
    first, begin, end, last = _ranges(row, kv_count, left, right, BLOCK_M, BLOCK_N, WINDOW)
    scale = qk_scale
    x = load_rows(q + q_start + head * q_sh, q_st, row, q_count, BLOCK_M, D, BLOCK_D, True)
    if not BIAS:
        scale = tl.abs(qk_scale) * _LOG2_E
        if NEGATIVE:  # else the largest product would not make the largest score
            x = (-x.to(tl.float32)).to(x.dtype)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), -_INF, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    if WINDOW:
        for n in range(first, begin, BLOCK_N):
            acc, top, total = _forward_step(
                acc, top, total, x, k_base, v_base, bias, k_st, v_st, bias_st, bias_sk, row, n, biased_q, kv_count,
                scale, left, right, BLOCK_M, BLOCK_N, D, BLOCK_D, False, True, BIAS, UPCAST, PRECISION,
            )  # fmt: skip
    for n in range(begin, end, BLOCK_N):
        acc, top, total = _forward_step(
            acc, top, total, x, k_base, v_base, bias, k_st, v_st, bias_st, bias_sk, row, n, biased_q, kv_count,
            scale, left, right, BLOCK_M, BLOCK_N, D, BLOCK_D, False, False, BIAS, UPCAST, PRECISION,
        )  # fmt: skip
    if WINDOW:
        for n in range(end, last, BLOCK_N):
            acc, top, total = _forward_step(
                acc, top, total, x, k_base, v_base, bias, k_st, v_st, bias_st, bias_sk, row, n, biased_q, kv_count,
                scale, left, right, BLOCK_M, BLOCK_N, D, BLOCK_D, True, True, BIAS, UPCAST, PRECISION,
            )  # fmt: skip
    elif end < last:
        acc, top, total = _forward_step(
            acc, top, total, x, k_base, v_base, bias, k_st, v_st, bias_st, bias_sk, row, end, biased_q, kv_count,
            scale, left, right, BLOCK_M, BLOCK_N, D, BLOCK_D, True, False, BIAS, UPCAST, PRECISION,
        )  # fmt: skip
    seen = total != 0  # NaN stays
    factor = tl.where(seen, out_scale / tl.where(seen, total, 1.0), 0.0)
    o_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, o_sb, o_st, Q_JAGGED)
    lse_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, lse_sb, lse_st, Q_JAGGED)
    store_rows(o + o_start + head * o_sh, o_st, row, q_count, acc * factor[:, None], BLOCK_M, D, BLOCK_D)
    if not BIAS:
        top *= _LN_2
    i = row + tl.arange(0, BLOCK_M)
    found = tl.where(seen, top + tl.log(tl.where(seen, total, 1.0)), -_INF)
    tl.store(lse + lse_start + head * lse_sh + i * lse_st, found, mask=i < q_count)


@triton.jit(do_not_specialize=NUMBERS)
def jagged_attention_rows_kernel(
    o, do, lse, dlse, row_lse, row_delta,
    o_sb, o_st, o_sh, do_sb, do_st, do_sh, lse_sb, lse_st, lse_sh, dlse_sb, dlse_st, dlse_sh, rows, out_rows,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    LSE_GRADIENT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """What the gradient kernels need of each row of the output, of all examples one after the other, (H, rows): lse in
    the unit of scores, and sum of o do less the gradient of lse. A row that sees no key has lse = inf there: its
    exp(s - lse) is 0 whatever s is."""
    program = tl.program_id(0)
    head = (program % HEADS).to(tl.int64)
    r = (program // HEADS).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = r < out_rows
    b, i = r // rows, r % rows
    c = tl.arange(0, BLOCK_D)
    mask = there[:, None] & (c < D)[None, :]
    x = tl.load(o + (b * o_sb + i * o_st + head * o_sh)[:, None] + c[None, :], mask=mask, other=0.0)
    y = tl.load(do + (b * do_sb + i * do_st + head * do_sh)[:, None] + c[None, :], mask=mask, other=0.0)
    delta = tl.sum(x.to(tl.float32) * y.to(tl.float32), 1)
    if LSE_GRADIENT:
        delta -= tl.load(dlse + b * dlse_sb + i * dlse_st + head * dlse_sh, mask=there, other=0.0)
    found = tl.load(lse + b * lse_sb + i * lse_st + head * lse_sh, mask=there, other=0.0)
    blind = found == -_INF
    if not BIAS:
        found *= _LOG2_E
    tl.store(row_lse + head * out_rows + r, tl.where(blind, _INF, found), mask=there)
    tl.store(row_delta + head * out_rows + r, tl.where(blind, 0.0, delta), mask=there)


@triton.jit
def _dq_step(
    acc, q, do, top, delta, k_base, v_base, bias, k_st, v_st, bias_st, bias_sk, row, n, q_count, kv_count,
    scale, out_scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = load_rows(k_base, k_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    v = load_rows(v_base, v_st, n, kv_count, BLOCK_N, D, BLOCK_D, MASK)
    zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    s = dot(q, tl.trans(k), zero, UPCAST, PRECISION)
    dp = dot(do, tl.trans(v), zero, UPCAST, PRECISION)
    i, j = row + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    bias = _bias_of_keys(bias, bias_st, bias_sk, i, n, q_count, kv_count, BLOCK_N, MASK, BIAS)
    s = _scores(s, bias, i[:, None], j[None, :], kv_count, scale, left, right, MASK, WINDOW, BIAS)
    ds = _exp(s - top[:, None], BIAS) * (dp * out_scale - delta[:, None])
    return dot(ds.to(k.dtype), k, acc, UPCAST, PRECISION)


@triton.jit(do_not_specialize=NUMBERS)
def jagged_attention_dq_kernel(
    do, q, k, v, bias, row_lse, row_delta, dq, q_offsets, kv_offsets, schedule,
    do_sb, do_st, do_sh, q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, dq_sb, dq_st, dq_sh,
    bias_sb, bias_sh, bias_st, bias_sk,
    batch, share, q_rows, q_total, kv_rows, kv_total, out_rows, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    Q_JAGGED: tl.constexpr, Q_SHARED: tl.constexpr, KV_JAGGED: tl.constexpr, ITEM: tl.constexpr,
    SCHEDULED: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    # Of shared queries an item is a tile and a share of the examples.
    example, row = find_tile(schedule, program // HEADS, q_rows, BLOCK_M, ITEM, SCHEDULED)
    if example < 0:
        return
    q_count = own_count(q_offsets, example, batch, q_rows, q_total, Q_JAGGED)
    if row >= q_count:
        return
    head = (program % HEADS).to(tl.int64)
    scale = qk_scale if BIAS else qk_scale * _LOG2_E
    i = row + tl.arange(0, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    begin_b, examples = example, 1
    if Q_SHARED:
        begin_b = example * share
        examples = tl.minimum(share, batch - begin_b)
    for e in range(examples):
        b = begin_b + e
        q_start, _ = own_rows(q_offsets, b, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
        do_start, _ = own_rows(q_offsets, b, batch, q_rows, q_total, do_sb, do_st, Q_JAGGED)
        row_start, _ = own_rows(q_offsets, b, batch, q_rows, q_total, q_rows, 1, Q_JAGGED)
        k_start, kv_count = other_rows(kv_offsets, b, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
        v_start, _ = other_rows(kv_offsets, b, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
        k_base, v_base = k + k_start + head * k_sh, v + v_start + head * v_sh
        b_bias, biased_q = bias, q_count
        if BIAS:
            b_bias = bias + b.to(tl.int64) * bias_sb + head * bias_sh
            biased_q, kv_count = _within_bias(q_count, q_rows, kv_count, kv_rows)
        first, begin, end, last = _ranges(row, kv_count, left, right, BLOCK_M, BLOCK_N, WINDOW)
        x = load_rows(q + q_start + head * q_sh, q_st, row, q_count, BLOCK_M, D, BLOCK_D, True)
        y = load_rows(do + do_start + head * do_sh, do_st, row, q_count, BLOCK_M, D, BLOCK_D, True)
        row_at = head * out_rows + row_start + i
        top = tl.load(row_lse + row_at, mask=i < q_count, other=_INF)
        delta = tl.load(row_delta + row_at, mask=i < q_count, other=0.0)
        if WINDOW:
            for n in range(first, begin, BLOCK_N):
                acc = _dq_step(
                    acc, x, y, top, delta, k_base, v_base, b_bias, k_st, v_st, bias_st, bias_sk, row, n, biased_q,
                    kv_count, scale, out_scale, left, right,
                    BLOCK_M, BLOCK_N, D, BLOCK_D, False, True, BIAS, UPCAST, PRECISION,
                )  # fmt: skip
        for n in range(begin, end, BLOCK_N):
            acc = _dq_step(
                acc, x, y, top, delta, k_base, v_base, b_bias, k_st, v_st, bias_st, bias_sk, row, n, biased_q,
                kv_count, scale, out_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, False, False, BIAS, UPCAST, PRECISION,
            )  # fmt: skip
        if WINDOW:
            for n in range(end, last, BLOCK_N):
                acc = _dq_step(
                    acc, x, y, top, delta, k_base, v_base, b_bias, k_st, v_st, bias_st, bias_sk, row, n, biased_q,
                    kv_count, scale, out_scale, left, right,
                    BLOCK_M, BLOCK_N, D, BLOCK_D, True, True, BIAS, UPCAST, PRECISION,
                )  # fmt: skip
        elif end < last:
            acc = _dq_step(
                acc, x, y, top, delta, k_base, v_base, b_bias, k_st, v_st, bias_st, bias_sk, row, end, biased_q,
                kv_count, scale, out_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, True, False, BIAS, UPCAST, PRECISION,
            )  # fmt: skip
    dq_start, q_count = own_rows(q_offsets, example, batch, q_rows, q_total, dq_sb, dq_st, Q_JAGGED)
    store_rows(dq + dq_start + head * dq_sh, dq_st, row, q_count, acc * qk_scale, BLOCK_M, D, BLOCK_D)


@triton.jit
def _load_numbers(base, r, count, other, MASK: tl.constexpr):
    """A number of each row r; `other` from `count` on."""
    if MASK:
        return tl.load(base + r, mask=r < count, other=other)
    else:
        return tl.load(base + r)


@triton.jit
def _dkv_step(
    dk, dv, k, v, q_base, do_base, lse_base, delta_base, bias, q_st, do_st, bias_st, bias_sk, row, m, q_count, kv_count,
    scale, out_scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    q = load_rows(q_base, q_st, m, q_count, BLOCK_M, D, BLOCK_D, MASK)
    do = load_rows(do_base, do_st, m, q_count, BLOCK_M, D, BLOCK_D, MASK)
    zero = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    s = dot(k, tl.trans(q), zero, UPCAST, PRECISION)
    r, j = m + tl.arange(0, BLOCK_M), row + tl.arange(0, BLOCK_N)
    # The bias as `_bias_of_keys` has it, with the sides exchanged.
    bias = _bias_of_keys(bias, bias_sk, bias_st, j, m, kv_count, q_count, BLOCK_M, MASK, BIAS)
    s = _scores(s, bias, r[None, :], j[:, None], kv_count, scale, left, right, False, WINDOW, BIAS)
    # Of a row past the last exp(s - lse) is 0: its scores need no mask.
    p = _exp(s - _load_numbers(lse_base, r, q_count, _INF, MASK)[None, :], BIAS)
    # Before dv, which is not waited for if nothing comes after it that is.
    dp = dot(v, tl.trans(do), zero, UPCAST, PRECISION)
    ds = p * (dp * out_scale - _load_numbers(delta_base, r, q_count, 0.0, MASK)[None, :])
    dv = dot(p.to(do.dtype), do, dv, UPCAST, PRECISION)
    dk = dot(ds.to(q.dtype), q, dk, UPCAST, PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=NUMBERS)
def jagged_attention_dkv_kernel(
    do, q, k, v, bias, row_lse, row_delta, dk, dv, q_offsets, kv_offsets, schedule,
    do_sb, do_st, do_sh, q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, dk_sb, dk_st, dk_sh, dv_sb, dv_st, dv_sh,
    bias_sb, bias_sh, bias_st, bias_sk,
    batch, share, q_rows, q_total, kv_rows, kv_total, out_rows, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    Q_JAGGED: tl.constexpr, KV_JAGGED: tl.constexpr, KV_SHARED: tl.constexpr, ITEM: tl.constexpr,
    SCHEDULED: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    example, row = find_tile(schedule, program // HEADS, kv_rows, BLOCK_N, ITEM, SCHEDULED)
    if example < 0:
        return
    kv_count = own_count(kv_offsets, example, batch, kv_rows, kv_total, KV_JAGGED)
    if row >= kv_count:
        return
    head = (program % HEADS).to(tl.int64)
    scale = qk_scale if BIAS else qk_scale * _LOG2_E
    k_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    v_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    begin_b, examples = example, 1
    if KV_SHARED:
        begin_b = example * share
        examples = tl.minimum(share, batch - begin_b)
    for e in range(examples):
        b = begin_b + e
        k_start, _ = own_rows(kv_offsets, b, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
        v_start, _ = own_rows(kv_offsets, b, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
        q_start, q_count = other_rows(q_offsets, b, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
        do_start, _ = other_rows(q_offsets, b, batch, q_rows, q_total, do_sb, do_st, Q_JAGGED)
        row_start, _ = other_rows(q_offsets, b, batch, q_rows, q_total, q_rows, 1, Q_JAGGED)
        q_base, do_base = q + q_start + head * q_sh, do + do_start + head * do_sh
        lse_base, delta_base = row_lse + head * out_rows + row_start, row_delta + head * out_rows + row_start
        b_bias, biased_kv = bias, kv_count
        if BIAS:
            b_bias = bias + b.to(tl.int64) * bias_sb + head * bias_sh
            biased_kv, q_count = _within_bias(kv_count, kv_rows, q_count, q_rows)
        # Key j is seen by queries j - right .. j + left.
        first, begin, end, last = _ranges(row, q_count, right, left, BLOCK_N, BLOCK_M, WINDOW)
        x = load_rows(k + k_start + head * k_sh, k_st, row, kv_count, BLOCK_N, D, BLOCK_D, True)
        y = load_rows(v + v_start + head * v_sh, v_st, row, kv_count, BLOCK_N, D, BLOCK_D, True)
        if WINDOW:
            for m in range(first, begin, BLOCK_M):
                k_acc, v_acc = _dkv_step(
                    k_acc, v_acc, x, y, q_base, do_base, lse_base, delta_base, b_bias, q_st, do_st, bias_st, bias_sk,
                    row, m, q_count, biased_kv, scale, out_scale, left, right,
                    BLOCK_M, BLOCK_N, D, BLOCK_D, False, True, BIAS, UPCAST, PRECISION,
                )  # fmt: skip
        for m in range(begin, end, BLOCK_M):
            k_acc, v_acc = _dkv_step(
                k_acc, v_acc, x, y, q_base, do_base, lse_base, delta_base, b_bias, q_st, do_st, bias_st, bias_sk,
                row, m, q_count, biased_kv, scale, out_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, False, False, BIAS, UPCAST, PRECISION,
            )  # fmt: skip
        if WINDOW:
            for m in range(end, last, BLOCK_M):
                k_acc, v_acc = _dkv_step(
                    k_acc, v_acc, x, y, q_base, do_base, lse_base, delta_base, b_bias, q_st, do_st, bias_st, bias_sk,
                    row, m, q_count, biased_kv, scale, out_scale, left, right,
                    BLOCK_M, BLOCK_N, D, BLOCK_D, True, True, BIAS, UPCAST, PRECISION,
                )  # fmt: skip
        elif end < last:
            k_acc, v_acc = _dkv_step(
                k_acc, v_acc, x, y, q_base, do_base, lse_base, delta_base, b_bias, q_st, do_st, bias_st, bias_sk,
                row, end, q_count, biased_kv, scale, out_scale, left, right,
                BLOCK_M, BLOCK_N, D, BLOCK_D, True, False, BIAS, UPCAST, PRECISION,
            )  # fmt: skip
    dk_start, kv_count = own_rows(kv_offsets, example, batch, kv_rows, kv_total, dk_sb, dk_st, KV_JAGGED)
    dv_start, kv_count = own_rows(kv_offsets, example, batch, kv_rows, kv_total, dv_sb, dv_st, KV_JAGGED)
    store_rows(dk + dk_start + head * dk_sh, dk_st, row, kv_count, k_acc * qk_scale, BLOCK_N, D, BLOCK_D)
    store_rows(dv + dv_start + head * dv_sh, dv_st, row, kv_count, v_acc * out_scale, BLOCK_N, D, BLOCK_D)


@triton.jit(do_not_specialize=NUMBERS)
def jagged_attention_dbias_kernel(
    do, q, k, v, bias, row_lse, row_delta, dbias, q_offsets, kv_offsets,
    do_sb, do_st, do_sh, q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh,
    bias_sb, bias_sh, bias_st, bias_sk, dbias_sb, dbias_sh, dbias_st,
    batch, share, q_rows, q_total, kv_rows, kv_total, out_rows, qk_scale, out_scale, left, right,
    HEADS: tl.constexpr, BIAS_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, Q_JAGGED: tl.constexpr, KV_JAGGED: tl.constexpr,
    BIAS_SHARED: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    bias_head = program % BIAS_HEADS
    item = program // BIAS_HEADS
    columns = tl.cdiv(kv_rows, BLOCK_N)
    n = (item % columns) * BLOCK_N
    item = item // columns
    lines = tl.cdiv(q_rows, BLOCK_M)
    m = (item % lines) * BLOCK_M
    # Of a bias that the batch shares an item is a tile and a share of the examples.
    item = item // lines
    i, j = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    zero = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    begin_b, examples = item, 1
    if BIAS_SHARED:
        begin_b = item * share
        examples = tl.minimum(share, batch - begin_b)
    in_reach = True
    if WINDOW:
        first, last = keys_in_reach(m, kv_rows, left, right, BLOCK_M, BLOCK_N, WINDOW)
        in_reach = (n >= first) & (n < last)
    for e in range(examples):
        b = begin_b + e
        q_start, q_count = other_rows(q_offsets, b, batch, q_rows, q_total, q_sb, q_st, Q_JAGGED)
        do_start, _ = other_rows(q_offsets, b, batch, q_rows, q_total, do_sb, do_st, Q_JAGGED)
        row_start, _ = other_rows(q_offsets, b, batch, q_rows, q_total, q_rows, 1, Q_JAGGED)
        k_start, kv_count = other_rows(kv_offsets, b, batch, kv_rows, kv_total, k_sb, k_st, KV_JAGGED)
        v_start, _ = other_rows(kv_offsets, b, batch, kv_rows, kv_total, v_sb, v_st, KV_JAGGED)
        q_count, kv_count = tl.minimum(q_count, q_rows), tl.minimum(kv_count, kv_rows)
        if (m < q_count) & (n < kv_count) & in_reach:
            for h in range(HEADS // BIAS_HEADS):
                head = (bias_head + h).to(tl.int64)
                b_bias = bias + b.to(tl.int64) * bias_sb + head * bias_sh
                x = load_rows(q + q_start + head * q_sh, q_st, m, q_count, BLOCK_M, D, BLOCK_D, True)
                y = load_rows(do + do_start + head * do_sh, do_st, m, q_count, BLOCK_M, D, BLOCK_D, True)
                z = load_rows(k + k_start + head * k_sh, k_st, n, kv_count, BLOCK_N, D, BLOCK_D, True)
                w = load_rows(v + v_start + head * v_sh, v_st, n, kv_count, BLOCK_N, D, BLOCK_D, True)
                row_at = head * out_rows + row_start + i
                top = tl.load(row_lse + row_at, mask=i < q_count, other=_INF)
                delta = tl.load(row_delta + row_at, mask=i < q_count, other=0.0)
                s = dot(x, tl.trans(z), zero, UPCAST, PRECISION)
                dp = dot(y, tl.trans(w), zero, UPCAST, PRECISION)
                b_bias = _bias_of_keys(b_bias, bias_st, bias_sk, i, n, q_count, kv_count, BLOCK_N, True, True)
                s = _scores(s, b_bias, i[:, None], j[None, :], kv_count, qk_scale, left, right, True, WINDOW, True)
                acc += _exp(s - top[:, None], True) * (dp * out_scale - delta[:, None])
    p = dbias + item.to(tl.int64) * dbias_sb + bias_head.to(tl.int64) * dbias_sh
    p += i[:, None].to(tl.int64) * dbias_st + j[None, :]
    tl.store(p, acc.to(dbias.dtype.element_ty), mask=(i < q_rows)[:, None] & (j < kv_rows)[None, :])


_FORWARD = tile_configs(
    (64, 32, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2),
    (64, 32, 8, 2), (32, 64, 4, 2), (16, 64, 4, 2), (32, 32, 4, 1), (16, 32, 4, 1),
)  # fmt: skip
_DQ = tile_configs(
    (64, 32, 4, 2), (64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 2), (64, 32, 8, 2),
    (32, 64, 4, 2), (32, 32, 8, 1), (32, 32, 4, 1), (16, 64, 4, 2), (16, 32, 4, 1), (16, 16, 4, 1),
)  # fmt: skip
_DKV = tile_configs(
    (32, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 2), (32, 64, 8, 2), (64, 64, 8, 2),
    (32, 32, 8, 2), (32, 32, 4, 2), (32, 32, 4, 1), (64, 16, 4, 2), (16, 64, 8, 2), (32, 16, 8, 2), (16, 32, 4, 1),
    (16, 16, 8, 2), (16, 16, 4, 1),
)  # fmt: skip
# Of each kernel by bits of an element, for `tuning.run`.
CANDIDATES = {
    "jagged_attention_forward_kernel": {16: _FORWARD, 32: EXACT_TILES},
    "jagged_attention_dq_kernel": {16: _DQ, 32: EXACT_TILES},
    "jagged_attention_dkv_kernel": {16: _DKV, 32: EXACT_TILES},
    "jagged_attention_dbias_kernel": {16: _DQ, 32: EXACT_TILES},
}


class _Launch(Launch):
    """A problem with its bias."""

    def __init__(self, q, k, v, q_offsets, kv_offsets, bias, max_q, max_kv, qk_scale, out_scale, left, right):
        super().__init__(q, k, v, q_offsets, kv_offsets, max_q, max_kv, qk_scale, out_scale, left, right)
        self.bias = bias
        self.out_rows = self.q_side.total if q_offsets is not None else self.batch * self.q_side.rows

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.bias if self.bias is not None else self.q

    @property
    def bias_strides(self) -> tuple[int, int, int, int]:
        """(of an example, of a head, of a query, of a key); 0 of a dimension of size 1."""
        if self.bias is None:
            return 0, 0, 0, 0
        return tuple(s if n > 1 else 0 for s, n in zip(self.bias.stride(), self.bias.shape, strict=True))

    def run(self, kernel, side: Side, block: str, copies: int, *before, schedule: Tensor, after: tuple, **constants):
        """Launches a kernel over the tiles of a side; arguments as in `Launch.over_tiles`."""
        constants["BIAS"] = self.bias is not None
        launch = self.over_tiles(kernel, side, block, copies, self.heads, before, schedule, after, **constants)
        self.tuned(kernel, launch, side)

    def tuned(self, kernel, launch, side: Side) -> None:
        """Runs `launch` with the config of a kernel whose programs work on tiles of `side`."""
        variant = " ".join(self.constants["WINDOW"] * ["window"] + (self.bias is not None) * ["bias"])
        tuning.run(kernel, CANDIDATES[kernel.__name__], launch, self.q, variant, side.rows, self.other(side).rows)


def jagged_attention_forward_triton(
    q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv, qk_scale, out_scale, left, right
) -> tuple[Tensor, Tensor]:
    """As `op.jagged_attention_forward`."""
    launch = _Launch(q, k, v, q_offsets, kv_offsets, bias, max_q, max_kv, qk_scale, out_scale, left, right)
    shape = launch.output_shape
    o = torch.empty(shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(shape[:-1], dtype=torch.float32, device=q.device)
    launch.run(
        jagged_attention_forward_kernel, launch.q_side, "BLOCK_M", launch.batch, *launch.inputs, o, lse,
        schedule=launch.schedule_of(launch.q_side, q_schedule),
        after=(
            *strides(launch.q, launch.k, launch.v, o, lse[..., None]), *launch.bias_strides, launch.batch, *launch.sizes
        ),
        NEGATIVE=qk_scale < 0,
    )  # fmt: skip
    return o, lse


def jagged_attention_backward_triton(
    grad, grad_lse, o, lse, q, k, v, q_offsets, kv_offsets, bias, q_schedule, kv_schedule, max_q, max_kv, qk_scale,
    out_scale, left, right, dq_wanted, dkv_wanted, dbias_wanted,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `op.jagged_attention_backward`."""
    launch = _Launch(q, k, v, q_offsets, kv_offsets, bias, max_q, max_kv, qk_scale, out_scale, left, right)
    grad = with_dense_rows(grad)
    rows = _prepare_rows(launch, grad, grad_lse, with_dense_rows(o), lse)
    before = (grad, *launch.inputs, *rows)
    their_strides = strides(grad, launch.q, launch.k, launch.v)
    nothing = q.new_empty
    dq = _dq(launch, before, their_strides, q_schedule) if dq_wanted else nothing(0)
    dk, dv = _dkv(launch, before, their_strides, kv_schedule) if dkv_wanted else (nothing(0), nothing(0))
    dbias = _dbias(launch, before, their_strides) if dbias_wanted else nothing(0)
    return dq, dk, dv, dbias


def _prepare_rows(launch: _Launch, grad: Tensor, grad_lse: Tensor | None, o: Tensor, lse: Tensor) -> Tensor:
    """(2, H, rows) float32; see the kernel."""
    found = torch.empty((2, launch.heads, launch.out_rows), dtype=torch.float32, device=grad.device)
    programs = triton.cdiv(launch.out_rows, _ROWS) * launch.heads
    if programs:
        dlse = lse if grad_lse is None else grad_lse
        jagged_attention_rows_kernel[(programs,)](
            o, grad, lse, dlse, *found, *strides(o, grad, lse[..., None], dlse[..., None]),
            grad.shape[-3], launch.out_rows, HEADS=launch.heads, D=launch.dim, BLOCK_D=padded_dim(launch.dim),
            BLOCK_M=_ROWS, LSE_GRADIENT=grad_lse is not None, BIAS=launch.bias is not None,
        )  # fmt: skip
    return found


def _dq(launch: _Launch, before: tuple, their_strides: list[int], schedule: Tensor | None) -> Tensor:
    q, side, batch = launch.q, launch.q_side, launch.batch
    count, share = shares(side, batch, launch.heads, q.device)
    dq = gradient_of(q, side, count)
    launch.run(
        jagged_attention_dq_kernel, side, "BLOCK_M", count, *before, dq, schedule=launch.schedule_of(side, schedule),
        after=(*their_strides, *strides(dq), *launch.bias_strides, batch, share, *launch.sizes, launch.out_rows),
        Q_SHARED=side.shared,
    )  # fmt: skip
    return summed(dq, q, side)


def _dkv(
    launch: _Launch, before: tuple, their_strides: list[int], schedule: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, side, batch = launch.k, launch.kv_side, launch.batch
    count, share = shares(side, batch, launch.heads, k.device)
    dk, dv = gradient_of(k, side, count), gradient_of(k, side, count)
    launch.run(
        jagged_attention_dkv_kernel, side, "BLOCK_N", count, *before, dk, dv,
        schedule=launch.schedule_of(side, schedule),
        after=(*their_strides, *strides(dk, dv), *launch.bias_strides, batch, share, *launch.sizes, launch.out_rows),
        KV_SHARED=side.shared,
    )  # fmt: skip
    return summed(dk, k, side), summed(dv, k, side)


def _dbias(launch: _Launch, before: tuple, their_strides: list[int]) -> Tensor:
    bias, batch = launch.bias, launch.batch
    # A bias of one example's size is shared by the batch as the rows of a side may be.
    side = Side(None, bias.shape[2], bias.shape[2], bias.shape[0] == 1)
    count, share = shares(side, batch, bias.shape[1], bias.device)
    dbias = gradient_of(bias, side, count)

    def run(config):
        tiles = triton.cdiv(bias.shape[2], config["BLOCK_M"]) * triton.cdiv(bias.shape[3], config["BLOCK_N"])
        programs = count * tiles * bias.shape[1]
        if programs:
            jagged_attention_dbias_kernel[(programs,)](
                *before, dbias, *launch.offsets, *their_strides, *launch.bias_strides,
                dbias.stride(0), *dbias.stride()[-3:-1],
                batch, share, *launch.sizes, launch.out_rows, *launch.scales, *launch.window,
                HEADS=launch.heads, BIAS_HEADS=bias.shape[1], BIAS_SHARED=side.shared, **launch.constants, **config,
            )  # fmt: skip

    launch.tuned(jagged_attention_dbias_kernel, run, launch.q_side)
    return summed(dbias, bias, side)
