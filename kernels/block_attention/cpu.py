"""Block attention in plain torch, blocks of like length padded to one size: what a CPU trains with.

Of 16-bit inputs everything between reading and writing is float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from faceter.kernels.block_attention.reference import turn
from faceter.kernels.operands import Side
from faceter.kernels.padded_blocks import Rows, blocks
from faceter.kernels.reference_parts import wide


def block_attention_forward_cpu(
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
) -> Tensor:
    """As `op.block_attention_forward`."""
    out = q.new_zeros(q.shape)
    problem = _Problem(q, offsets, cos, sin, block)
    q, k, v, out_THD = (_flat(x) for x in (q, k, v, out))
    for rows in problem.groups():
        q_BHND, k_BHND = (problem.turned(x, rows) for x in (q, k))
        p_BHNN = _probabilities(q_BHND, k_BHND, rows, qk_scale)
        problem.write(torch.matmul(p_BHNN, problem.read(v, rows)) * out_scale, out_THD, rows)
    return out


def block_attention_backward_cpu(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """As `op.block_attention_backward`."""
    gradients = tuple(x.new_zeros(x.shape) for x in (q, k, v))
    problem = _Problem(q, offsets, cos, sin, block)
    grad, q, k, v, dq, dk, dv = (_flat(x) for x in (grad, q, k, v, *gradients))
    for rows in problem.groups():
        q_BHND, k_BHND = (problem.turned(x, rows) for x in (q, k))
        do_BHND = problem.read(grad, rows) * out_scale
        p_BHNN = _probabilities(q_BHND, k_BHND, rows, qk_scale)
        dp_BHNN = torch.matmul(do_BHND, problem.read(v, rows).mT)
        ds_BHNN = dp_BHNN.sub_((p_BHNN * dp_BHNN).sum(-1, keepdim=True)).mul_(p_BHNN).mul_(qk_scale)
        problem.write_turned_back(torch.matmul(ds_BHNN, k_BHND), dq, rows)
        problem.write_turned_back(torch.matmul(ds_BHNN.mT, q_BHND), dk, rows)
        problem.write(torch.matmul(p_BHNN.mT, do_BHND), dv, rows)
    return gradients


def _flat(x: Tensor) -> Tensor:
    """(T, H, D)."""
    return x if x.dim() == 3 else x.flatten(0, 1)


def _probabilities(q_BHND: Tensor, k_BHND: Tensor, rows: Rows, qk_scale: float) -> Tensor:
    s_BHNN = torch.matmul(q_BHND, k_BHND.mT).mul_(qk_scale)
    if not rows.valid.all():
        s_BHNN.masked_fill_(~rows.valid[:, None, None], float("-inf"))
    return torch.softmax(s_BHNN, dim=-1)


class _Problem:
    """Blocks as examples of a jagged tensor."""

    def __init__(self, q: Tensor, offsets: Tensor | None, cos: Tensor | None, sin: Tensor | None, block: int):
        self.heads, self.angles = q.shape[-2], None
        if cos is not None:
            # As a tensor of one head.
            self.angles = [_flat(a.expand(*q.shape[:-2], -1).unsqueeze(-2)) for a in (cos, sin)]
        if offsets is None:
            offsets = torch.arange(q.shape[0] + 1) * q.shape[1]
        counts = (offsets.diff().long() + block - 1).clamp(min=0) // block
        place = torch.arange(int(counts.sum())) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        starts = torch.repeat_interleave(offsets[:-1].long(), counts) + place * block
        self.side = Side(torch.cat([starts, offsets[-1:].long()]), block, 0, False)

    def groups(self) -> Iterator[Rows]:
        batch = self.side.offsets.shape[0] - 1
        return (rows for rows, _ in blocks(self.side, self.side, batch, self.heads, self.side.offsets.device))

    def read(self, x: Tensor, rows: Rows) -> Tensor:
        """(b, H, n, D), float32 at least; padding rows are zero."""
        return wide(rows.gather(x, self.side))

    def write(self, x_BHND: Tensor, out: Tensor, rows: Rows) -> None:
        rows.scatter(x_BHND, out, self.side)

    def turned(self, x: Tensor, rows: Rows) -> Tensor:
        """As `read`, turned if there are angles."""
        read = self.read(x, rows)
        return read if self.angles is None else turn(read, *(self.read(a, rows) for a in self.angles))

    def write_turned_back(self, x_BHND: Tensor, out: Tensor, rows: Rows) -> None:
        if self.angles is not None:  # a turn's transpose turns back
            cos, sin = (self.read(a, rows) for a in self.angles)
            x_BHND = turn(x_BHND, cos, -sin)
        self.write(x_BHND, out, rows)
