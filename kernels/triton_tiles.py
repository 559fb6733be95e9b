"""Where a program's rows lie: the parts that all attention kernels share.

A program works on one tile (BLOCK rows of one example) of one head. `Side` in `operands.py` says what forms there are.
"""

import triton
import triton.language as tl


@triton.jit
def find_tile(schedule, program, rows, BLOCK: tl.constexpr, ITEM: tl.constexpr, SCHEDULED: tl.constexpr):
    """(example, first row) of a program, from a tile list (see `schedule`) whose items are ITEM rows or, for sides that
    are not jagged, by counting. The example is -1 past the end of the list."""
    if SCHEDULED:
        item = program // (ITEM // BLOCK)
        there = item < tl.load(schedule)
        example = tl.load(schedule + 2 + 2 * item, mask=there, other=-1)
        row = tl.load(schedule + 3 + 2 * item, mask=there, other=0) + (program % (ITEM // BLOCK)) * BLOCK
    else:
        tiles = tl.cdiv(rows, BLOCK)
        example = program // tiles
        row = (program % tiles) * BLOCK
    return example, row


@triton.jit
def _bounds(offsets, example, batch, total):
    """(first row, end) of an example. Rows of illegal offsets are cut to those there are: the numbers are wrong then,
    but memory is safe."""
    start = tl.minimum(tl.maximum(tl.load(offsets + example).to(tl.int64), 0), total)
    end = tl.load(offsets + tl.minimum(example + 1, batch)).to(tl.int64)
    return start, tl.minimum(tl.maximum(end, start), total)


@triton.jit
def own_rows(offsets, example, batch, rows, total, stride_b, stride_t, JAGGED: tl.constexpr):
    """(element offset of the first row, number of rows) on the side that the work items are of. The example after the
    last one, in a tile list, stands for the rows past offsets[B]."""
    if JAGGED:
        start, end = _bounds(offsets, example, batch, total)
        end = tl.where(example < batch, end, total)
        return start * stride_t, (end - start).to(tl.int32)
    else:
        return example.to(tl.int64) * stride_b, rows


@triton.jit
def own_count(offsets, example, batch, rows, total, JAGGED: tl.constexpr):
    """The number of rows alone. A kernel asks where they go once it is about to store: before, it has no registers."""
    _, count = own_rows(offsets, example, batch, rows, total, 0, 1, JAGGED)
    return count


@triton.jit
def other_rows(offsets, example, batch, rows, total, stride_b, stride_t, JAGGED: tl.constexpr):
    """The same on the other side, where the example after the last one has no rows."""
    if JAGGED:
        start, end = _bounds(offsets, example, batch, total)
        return start * stride_t, (end - start).to(tl.int32)
    else:
        return example.to(tl.int64) * stride_b, tl.where(example < batch, rows, 0)


@triton.jit
def _wide(row):
    """int64, also of what is a Python int in the interpreter."""
    return tl.zeros((), tl.int64) + row


@triton.jit
def load_rows(
    base, stride_t, row, count, BLOCK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, MASK: tl.constexpr
):
    """(BLOCK, BLOCK_D): rows row .. row + BLOCK; zero from `count` on (if MASK) and past D."""
    # One scalar moves from tile to tile; the offsets within a tile stay the same, of 32 bits each.
    r = tl.arange(0, BLOCK)
    c = tl.arange(0, BLOCK_D)
    p = (base + _wide(row) * stride_t) + (r[:, None] * stride_t + c[None, :])
    if D == BLOCK_D:
        if MASK:
            return tl.load(p, mask=(r < count - row)[:, None], other=0.0)
        else:
            return tl.load(p)
    else:
        if MASK:
            return tl.load(p, mask=(r < count - row)[:, None] & (c < D)[None, :], other=0.0)
        else:
            return tl.load(p, mask=(c < D)[None, :], other=0.0)


@triton.jit
def store_rows(base, stride_t, row, count, x, BLOCK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Stores rows row .. row + BLOCK that are below `count`, columns below D."""
    r = tl.arange(0, BLOCK)
    c = tl.arange(0, BLOCK_D)
    p = (base + _wide(row) * stride_t) + (r[:, None] * stride_t + c[None, :])
    tl.store(p, x.to(base.dtype.element_ty), mask=(r < count - row)[:, None] & (c < D)[None, :])


@triton.jit
def in_window(q_rows, kv_rows, left, right):
    """bool, broadcast of both: row i of the queries sees key j if i - left <= j <= i + right; -1 = no bound."""
    distance = kv_rows - q_rows
    return ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))


@triton.jit
def keys_in_reach(q_row, kv_count, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """[first, last) of the key rows that queries q_row .. q_row + BLOCK_M see; first is a multiple of BLOCK_N."""
    if WINDOW:
        first = tl.where(left < 0, 0, tl.maximum(q_row - left, 0) // BLOCK_N * BLOCK_N)
        last = tl.where(right < 0, kv_count, tl.minimum(kv_count, q_row + BLOCK_M + right))
        return first, last
    else:
        return 0, kv_count


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """acc + a b in fp32. UPCAST for the interpreter, whose bf16 is wrong."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)
