"""An attention problem on the host: what its launches share, and the gradient of a side shared by the batch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
from torch import Tensor

from faceter.kernels.configs import Config
from faceter.kernels.implementations import interpreted
from faceter.kernels.operands import Side, batch_size
from faceter.kernels.schedule.op import TILE, tile_list
from faceter.kernels.schedule.reference import most_tiles
from faceter.kernels.triton_launch import padded_dim, precision, with_dense_rows

# Programs for each multiprocessor that sum the gradient of a side shared by the batch, and rows that one has at least.
_WAVES, _LEAST_ROWS = 2, 32


class Launch:
    """The operands of one attention problem as its kernels take them.

    Attributes:
        q, k, v: with dense rows.
        q_side, kv_side: their forms.
        batch, heads, dim: B, H, D.
        scales: (qk_scale, out_scale).
        window: (left, right), -1 = no bound.
        offsets: of q and of k and v; any tensor where there are none.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor | None, kv_offsets: Tensor | None, max_q: int,
        max_kv: int, qk_scale: float, out_scale: float, left: int, right: int,
    ):  # fmt: skip
        self.q, self.k, self.v = (with_dense_rows(x) for x in (q, k, v))
        self.q_side, self.kv_side = Side.of(q, q_offsets, max_q), Side.of(k, kv_offsets, max_kv)
        self.batch, self.heads, self.dim = batch_size(q, k, q_offsets, kv_offsets), q.shape[-2], q.shape[-1]
        self.scales = (qk_scale, out_scale)
        # A bound beyond what a sum of three int32 holds is none.
        self.window = (min(left, 1 << 29), min(right, 1 << 29))
        self.offsets = (q_offsets if q_offsets is not None else q, kv_offsets if kv_offsets is not None else q)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(q rows, q total, kv rows, kv total)."""
        return self.q_side.rows, self.q_side.total, self.kv_side.rows, self.kv_side.total

    @property
    def output_shape(self) -> tuple[int, ...]:
        q = self.q
        return q.shape if self.q_side.offsets is not None else (self.batch, *q.shape[-3:])

    @property
    def constants(self) -> dict:
        """The constexprs that all kernels of the problem share."""
        return {
            "D": self.dim,
            "BLOCK_D": padded_dim(self.dim),
            "Q_JAGGED": self.q_side.offsets is not None,
            "KV_JAGGED": self.kv_side.offsets is not None,
            "WINDOW": max(self.window) >= 0,
            "UPCAST": interpreted(),
            "PRECISION": precision(8 * self.q.element_size()),
        }

    def schedule_of(self, side: Side, schedule: Tensor | None) -> Tensor:
        """The tile list of a side; any tensor if it isn't jagged."""
        if side.offsets is None:
            return self.q
        if schedule is not None:
            return schedule
        return tile_list(side.offsets, self.other(side).offsets, side.total)

    def other(self, side: Side) -> Side:
        """The side that programs on tiles of this one go through."""
        return self.kv_side if side is self.q_side else self.q_side

    def tiles(self, side: Side, block: int, copies: int) -> int:
        """Of a side's rows, for one head; `copies`: examples, or shares of them, of a side that isn't jagged."""
        if side.offsets is not None:
            return most_tiles(side.total, self.batch, TILE) * (TILE // block)
        return copies * triton.cdiv(side.rows, block)

    def over_tiles(
        self, kernel, side: Side, block: str, copies: int, heads: int, before: tuple, schedule: Tensor, after: tuple,
        **constants,
    ) -> Callable[[Config], None]:  # fmt: skip
        """A function of a config that launches a kernel over the tiles of a side.

        Args:
            kernel: takes `before`, offsets, the schedule, `after`, scales and window.
            side: whose rows are cut into tiles.
            block: the constexpr that says into how large ones.
            copies: as in `tiles`.
            heads: how many it is for.
            schedule: the side's tile list.
            constants: constexprs beside those of the problem.
        """

        def launch(config: Config) -> None:
            programs = self.tiles(side, config[block], copies) * heads
            if programs:
                kernel[(programs,)](
                    *before, *self.offsets, schedule, *after, *self.scales, *self.window,
                    HEADS=heads, ITEM=TILE, SCHEDULED=side.offsets is not None,
                    **self.constants, **constants, **config,
                )  # fmt: skip

        return launch


@functools.lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def shares(side: Side, batch: int, heads: int, device: torch.device) -> tuple[int, int]:
    """Into how many shares the examples go for the gradient of a shared side, and examples of each: enough shares to
    fill the device. Of another side every example is one."""
    if not side.shared:
        return batch, 1
    programs = heads * triton.cdiv(max(1, side.rows), _LEAST_ROWS)
    wanted = max(1, _WAVES * _multiprocessors(device) // max(1, programs))
    share = max(1, -(-batch // wanted))
    return max(1, -(-batch // share)), share


def gradient_of(x: Tensor, side: Side, count: int) -> Tensor:
    """Uninitialised memory for the gradient of x; of a shared one for `count` partial sums in fp32."""
    if side.shared:
        return torch.empty((count, *x.shape), dtype=torch.float32, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def summed(gradient: Tensor, x: Tensor, side: Side) -> Tensor:
    """The gradient, from partial sums if there are."""
    return gradient.sum(0).to(x.dtype) if side.shared else gradient
