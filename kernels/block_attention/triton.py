"""Portable Triton kernels of block attention, forward and backward.

A program has one block of one head or of a few in turn: then, with several stages, the next one's rows are on their way
while one is computed, and the angles, which all heads share, stay near. All scores of a block are there at once: so
softmax needs no rescaling, and backward no saved state. What takes time is memory traffic.

Of large heads, for which shared memory has no room, a chunk of columns is taken at a time. Where a head is one chunk,
the loops over chunks are gone once compiled, and no row is loaded twice.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from faceter.kernels import tuning
from faceter.kernels.configs import Config
from faceter.kernels.implementations import interpreted
from faceter.kernels.schedule.op import TILE, tile_list
from faceter.kernels.schedule.reference import most_tiles
from faceter.kernels.triton_launch import NUMBERS, padded_dim, precision, strides, with_dense_rows
from faceter.kernels.triton_tiles import dot, find_tile, own_rows

_LOG2_E = tl.constexpr(1.4426950408889634)
# Below all scores, and finite: where a block has no keys, exp2 of a difference is no NaN.
_MASKED = tl.constexpr(-1e30)


@triton.jit
def _load(base, stride_t, count, first, BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr):
    """(BLOCK, CHUNK): columns first .. first + CHUNK of rows 0 .. BLOCK; zero from row `count` and column D on."""
    r = tl.arange(0, BLOCK)
    c = first + tl.arange(0, CHUNK)
    mask = (r < count)[:, None]
    if D % CHUNK != 0:
        mask = mask & (c < D)[None, :]
    return tl.load(base + r[:, None] * stride_t + c[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, stride_t, count, first, x, BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr):
    """Stores what `_load` would load."""
    r = tl.arange(0, BLOCK)
    c = first + tl.arange(0, CHUNK)
    mask = (r < count)[:, None]
    if D % CHUNK != 0:
        mask = mask & (c < D)[None, :]
    tl.store(base + r[:, None] * stride_t + c[None, :], x.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _turn(x, y, c, s):
    x_turned = x.to(tl.float32) * c - y.to(tl.float32) * s
    y_turned = x.to(tl.float32) * s + y.to(tl.float32) * c
    return x_turned.to(x.dtype), y_turned.to(x.dtype)


@triton.jit
def _load_head(
    base, stride_t, cos, cos_st, sin, sin_st, count, first,
    BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, ROTARY: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """(BLOCK, CHUNK) of q or k: as `_load` or, if ROTARY, half as many pairs (i, i + D / 2), turned, side by side: that
    order of columns needs no exchange between threads, and a product over them is the same in any."""
    if ROTARY:
        x = _load(base, stride_t, count, first // 2, BLOCK, D // 2, CHUNK // 2)
        y = _load(base + D // 2, stride_t, count, first // 2, BLOCK, D // 2, CHUNK // 2)
        c = _load(cos, cos_st, count, first // 2, BLOCK, D // 2, CHUNK // 2)
        s = _load(sin, sin_st, count, first // 2, BLOCK, D // 2, CHUNK // 2)
        if INTERPRETED:
            x, y = _turn(x, y, c, s)
        else:
            # Mapped, because of plain arithmetic the compiler would move the change of layout for the product to its
            # four operands, angles in fp32 among them: twice the registers, or spills.
            x, y = tl.map_elementwise(_turn, x, y, c, s)
        return tl.interleave(x, y)
    else:
        return _load(base, stride_t, count, first, BLOCK, D, CHUNK)


@triton.jit
def _store_head(
    base, stride_t, cos, cos_st, sin, sin_st, count, stored, first, acc,
    BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of what `_load_head` loads: `stored` rows, of which `count` are of an example."""
    if ROTARY:  # a turn's transpose turns back
        x, y = tl.split(tl.reshape(acc, (BLOCK, CHUNK // 2, 2)))
        c = _load(cos, cos_st, count, first // 2, BLOCK, D // 2, CHUNK // 2)
        s = _load(sin, sin_st, count, first // 2, BLOCK, D // 2, CHUNK // 2)
        _store(base, stride_t, stored, first // 2, x * c + y * s, BLOCK, D // 2, CHUNK // 2)
        _store(base + D // 2, stride_t, stored, first // 2, y * c - x * s, BLOCK, D // 2, CHUNK // 2)
    else:
        _store(base, stride_t, stored, first, acc, BLOCK, D, CHUNK)


@triton.jit
def _products(
    x, x_st, y, y_st, cos, cos_st, sin, sin_st, count,
    BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, ROTARY: tl.constexpr,
    INTERPRETED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(BLOCK, BLOCK): x y^T; of turned rows if ROTARY."""
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, D, CHUNK):
        a = _load_head(x, x_st, cos, cos_st, sin, sin_st, count, first, BLOCK, D, CHUNK, ROTARY, INTERPRETED)
        b = _load_head(y, y_st, cos, cos_st, sin, sin_st, count, first, BLOCK, D, CHUNK, ROTARY, INTERPRETED)
        acc = dot(a, tl.trans(b), acc, INTERPRETED, PRECISION)
    return acc


@triton.jit
def _exponentials(s, qk_scale, count, BLOCK: tl.constexpr):
    """exp(qk_scale s - the row's largest) of the first `count` keys, and its row sums."""
    s = s * (qk_scale * _LOG2_E)
    s = tl.where((tl.arange(0, BLOCK) < count)[None, :], s, _MASKED)
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    return p, tl.sum(p, 1)


@triton.jit
def _find_block(
    offsets, schedule, item, batch, rows, total, BLOCK: tl.constexpr, ITEM: tl.constexpr, JAGGED: tl.constexpr
):
    """(example, row, rows of the block, of which so many belong to an example). Its elements lie from
    example * stride_b + row * stride_t on; there is none if it has no rows."""
    example, row = find_tile(schedule, item, rows, BLOCK, ITEM, JAGGED)
    there = example >= 0
    start, count = own_rows(offsets, tl.where(there, example, 0), batch, rows, total, 0, 1, JAGGED)
    stored = tl.where(there, tl.minimum(count - row, BLOCK), 0)
    # The example after the last stands for the rows past offsets[B]: they are written, never read.
    return example.to(tl.int64), start + row, stored, tl.where(example < batch, stored, 0)


@triton.jit(do_not_specialize=NUMBERS)
def block_attention_forward_kernel(
    q, k, v, o, offsets, cos, sin, schedule,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, o_sb, o_st, o_sh, cos_sb, cos_st, sin_sb, sin_st,
    batch, rows, total, qk_scale, out_scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr,
    JAGGED: tl.constexpr, ROTARY: tl.constexpr, ITEM: tl.constexpr,
    INTERPRETED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    GROUPS: tl.constexpr = HEADS // GROUP
    b, row, stored, count = _find_block(offsets, schedule, program // GROUPS, batch, rows, total, BLOCK, ITEM, JAGGED)
    if stored <= 0:
        return
    q, k, v = q + b * q_sb + row * q_st, k + b * k_sb + row * k_st, v + b * v_sb + row * v_st
    o = o + b * o_sb + row * o_st
    cos, sin = cos + b * cos_sb + row * cos_st, sin + b * sin_sb + row * sin_st
    first_head = (program % GROUPS) * GROUP
    zero = tl.zeros((BLOCK, CHUNK), tl.float32)
    for i in range(GROUP):
        head = first_head + i
        q_h, k_h, v_h, o_h = q + head * q_sh, k + head * k_sh, v + head * v_sh, o + head * o_sh
        if CHUNK >= D:  # all at once: a program waits for memory but once
            q_c = _load_head(q_h, q_st, cos, cos_st, sin, sin_st, count, 0, BLOCK, D, CHUNK, ROTARY, INTERPRETED)
            k_c = _load_head(k_h, k_st, cos, cos_st, sin, sin_st, count, 0, BLOCK, D, CHUNK, ROTARY, INTERPRETED)
            v_c = _load(v_h, v_st, count, 0, BLOCK, D, CHUNK)
            s = dot(q_c, tl.trans(k_c), tl.zeros((BLOCK, BLOCK), tl.float32), INTERPRETED, PRECISION)
        else:
            s = _products(
                q_h, q_st, k_h, k_st, cos, cos_st, sin, sin_st, count,
                BLOCK, D, CHUNK, ROTARY, INTERPRETED, PRECISION,
            )  # fmt: skip
        p, sums = _exponentials(s, qk_scale, count, BLOCK)
        p = p.to(q.dtype.element_ty)
        factor = (out_scale / sums)[:, None]
        for first in range(0, D, CHUNK):
            if CHUNK < D:
                v_c = _load(v_h, v_st, count, first, BLOCK, D, CHUNK)
            x = dot(p, v_c, zero, INTERPRETED, PRECISION) * factor
            _store(o_h, o_st, stored, first, x, BLOCK, D, CHUNK)


@triton.jit(do_not_specialize=NUMBERS)
def block_attention_backward_kernel(
    do, q, k, v, dq, dk, dv, offsets, cos, sin, schedule,
    do_sb, do_st, do_sh, q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh,
    dq_sb, dq_st, dq_sh, dk_sb, dk_st, dk_sh, dv_sb, dv_st, dv_sh, cos_sb, cos_st, sin_sb, sin_st,
    batch, rows, total, qk_scale, out_scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr,
    JAGGED: tl.constexpr, ROTARY: tl.constexpr, ITEM: tl.constexpr,
    INTERPRETED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    GROUPS: tl.constexpr = HEADS // GROUP
    b, row, stored, count = _find_block(offsets, schedule, program // GROUPS, batch, rows, total, BLOCK, ITEM, JAGGED)
    if stored <= 0:
        return
    q, k, v = q + b * q_sb + row * q_st, k + b * k_sb + row * k_st, v + b * v_sb + row * v_st
    do = do + b * do_sb + row * do_st
    dq, dk, dv = dq + b * dq_sb + row * dq_st, dk + b * dk_sb + row * dk_st, dv + b * dv_sb + row * dv_st
    cos, sin = cos + b * cos_sb + row * cos_st, sin + b * sin_sb + row * sin_st
    first_head = (program % GROUPS) * GROUP
    scale = qk_scale * out_scale
    zero = tl.zeros((BLOCK, CHUNK), tl.float32)
    for i in range(GROUP):
        head = first_head + i
        do_h, q_h, k_h, v_h = do + head * do_sh, q + head * q_sh, k + head * k_sh, v + head * v_sh
        dq_h, dk_h, dv_h = dq + head * dq_sh, dk + head * dk_sh, dv + head * dv_sh
        if CHUNK >= D:
            q_c = _load_head(q_h, q_st, cos, cos_st, sin, sin_st, count, 0, BLOCK, D, CHUNK, ROTARY, INTERPRETED)
            k_c = _load_head(k_h, k_st, cos, cos_st, sin, sin_st, count, 0, BLOCK, D, CHUNK, ROTARY, INTERPRETED)
            do_c = _load(do_h, do_st, count, 0, BLOCK, D, CHUNK)
            v_c = _load(v_h, v_st, count, 0, BLOCK, D, CHUNK)
            s = dot(q_c, tl.trans(k_c), tl.zeros((BLOCK, BLOCK), tl.float32), INTERPRETED, PRECISION)
            dp = dot(do_c, tl.trans(v_c), tl.zeros((BLOCK, BLOCK), tl.float32), INTERPRETED, PRECISION)
        else:
            s = _products(
                q_h, q_st, k_h, k_st, cos, cos_st, sin, sin_st, count,
                BLOCK, D, CHUNK, ROTARY, INTERPRETED, PRECISION,
            )  # fmt: skip
            dp = _products(
                do_h, do_st, v_h, v_st, cos, cos_st, sin, sin_st, count,
                BLOCK, D, CHUNK, False, INTERPRETED, PRECISION,
            )  # fmt: skip
        p, sums = _exponentials(s, qk_scale, count, BLOCK)
        p = p * (1.0 / sums)[:, None]
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None])).to(q.dtype.element_ty)
        p = p.to(q.dtype.element_ty)
        for first in range(0, D, CHUNK):
            if CHUNK < D:
                q_c = _load_head(
                    q_h, q_st, cos, cos_st, sin, sin_st, count, first, BLOCK, D, CHUNK, ROTARY, INTERPRETED
                )  # fmt: skip
                k_c = _load_head(
                    k_h, k_st, cos, cos_st, sin, sin_st, count, first, BLOCK, D, CHUNK, ROTARY, INTERPRETED
                )  # fmt: skip
                do_c = _load(do_h, do_st, count, first, BLOCK, D, CHUNK)
            # One after the other: there are no registers for two. dv first, because past a store the compiler loads the
            # angles again rather than keep them.
            x = dot(tl.trans(p), do_c, zero, INTERPRETED, PRECISION) * out_scale
            _store(dv_h, dv_st, stored, first, x, BLOCK, D, CHUNK)
            x = dot(ds, k_c, zero, INTERPRETED, PRECISION) * scale
            _store_head(dq_h, dq_st, cos, cos_st, sin, sin_st, count, stored, first, x, BLOCK, D, CHUNK, ROTARY)
            x = dot(tl.trans(ds), q_c, zero, INTERPRETED, PRECISION) * scale
            _store_head(dk_h, dk_st, cos, cos_st, sin, sin_st, count, stored, first, x, BLOCK, D, CHUNK, ROTARY)


def _configs(*candidates: tuple[int, int, int, int]) -> list[Config]:
    """From (most heads of a program, columns of a head at a time, num_warps, num_stages)."""
    names = ("GROUP", "CHUNK", "num_warps", "num_stages")
    return [dict(zip(names, candidate, strict=True)) for candidate in candidates]


# Columns from the head dim on: all.
_FORWARD = _configs(
    (1, 128, 4, 1), (1, 256, 8, 1), (1, 64, 8, 1), (1, 256, 4, 1), (1, 128, 8, 1), (4, 128, 4, 2), (1, 64, 4, 1),
    (1, 128, 2, 1), (1, 256, 2, 1), (1, 256, 1, 1), (1, 128, 1, 1),
)  # fmt: skip
_BACKWARD = _configs(
    (1, 128, 4, 1), (1, 64, 4, 2), (1, 64, 8, 1), (1, 128, 8, 1), (4, 128, 8, 2), (1, 64, 4, 1), (1, 64, 2, 1),
    (1, 128, 2, 1), (1, 64, 1, 1), (1, 128, 1, 1),
)  # fmt: skip
# Without tensor cores a thread holds its rows' and columns' operands.
_EXACT = _configs((1, 16, 16, 1), (1, 16, 8, 1), (1, 16, 4, 1))
# Of each kernel by bits of an element, for `tuning.run`.
CANDIDATES = {
    "block_attention_forward_kernel": {16: _FORWARD, 32: _EXACT},
    "block_attention_backward_kernel": {16: _BACKWARD, 32: _EXACT},
}


class _Launch:
    """What forward and backward of one problem share."""

    def __init__(self, q, k, v, offsets, cos, sin, schedule, block, qk_scale, out_scale):
        self.q, self.k, self.v = (with_dense_rows(x) for x in (q, k, v))
        self.jagged, self.rotary = offsets is not None, cos is not None
        self.offsets = offsets if self.jagged else q
        self.cos, self.sin = (
            x if x.stride(-1) == 1 else x.contiguous() for x in ((cos, sin) if self.rotary else (q, q))
        )
        self.block, self.scales = block, (qk_scale, out_scale)
        if self.jagged:
            self.batch, self.rows, self.total = offsets.shape[0] - 1, 0, q.shape[0]
            self.schedule = tile_list(offsets, None, self.total) if schedule is None else schedule
            self.blocks = most_tiles(self.total, self.batch, TILE) * (TILE // block)
        else:
            self.batch, self.rows, self.total = q.shape[0], q.shape[1], q.shape[0] * q.shape[1]
            self.schedule = q
            self.blocks = self.batch * triton.cdiv(self.rows, block)

    def run(self, kernel, tensors: tuple[Tensor, ...]) -> None:
        """Runs a kernel on every block.

        Args:
            tensors: its first arguments, of q's form.
        """
        heads, dim = self.q.shape[-2:]

        def launch(config):
            group = math.gcd(heads, config["GROUP"])
            programs = self.blocks * (heads // group)
            if programs:
                kernel[(programs,)](
                    *tensors, self.offsets, self.cos, self.sin, self.schedule,
                    *strides(*tensors), *self._angle_strides(self.cos), *self._angle_strides(self.sin),
                    self.batch, self.rows, self.total, *self.scales,
                    HEADS=heads, BLOCK=self.block, D=dim, JAGGED=self.jagged, ROTARY=self.rotary, ITEM=TILE,
                    INTERPRETED=interpreted(), PRECISION=precision(8 * self.q.element_size()),
                    **config | {"GROUP": group, "CHUNK": min(config["CHUNK"], padded_dim(dim))},
                )  # fmt: skip

        variant = f"block {self.block}" + self.rotary * " rotary"
        tuning.run(kernel, CANDIDATES[kernel.__name__], launch, self.q, variant, self.block, self.block)

    def _angle_strides(self, x: Tensor) -> tuple[int, int]:
        """(of an example, of a row)."""
        if not self.rotary:
            return 0, 0
        return (0 if self.jagged or x.shape[0] == 1 else x.stride(0), x.stride(-2))


def block_attention_forward_triton(
    q, k, v, offsets, cos, sin, schedule, max_len, block, qk_scale, out_scale
) -> Tensor:  # fmt: skip
    """As `op.block_attention_forward`."""
    launch = _Launch(q, k, v, offsets, cos, sin, schedule, block, qk_scale, out_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launch.run(block_attention_forward_kernel, (launch.q, launch.k, launch.v, out))
    return out


def block_attention_backward_triton(
    grad, q, k, v, offsets, cos, sin, schedule, max_len, block, qk_scale, out_scale
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `op.block_attention_backward`."""
    launch = _Launch(q, k, v, offsets, cos, sin, schedule, block, qk_scale, out_scale)
    gradients = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    launch.run(block_attention_backward_kernel, (with_dense_rows(grad), launch.q, launch.k, launch.v, *gradients))
    return gradients
