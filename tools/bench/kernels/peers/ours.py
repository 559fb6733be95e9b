"""faceter itself, through its public functions."""

from __future__ import annotations

from faceter.kernels.block_attention.op import block_attention, block_attention_implementation
from faceter.kernels.gdpa.op import gdpa, gdpa_forward, gdpa_implementation
from faceter.kernels.jagged_attention.op import (
    jagged_attention,
    jagged_attention_forward,
    jagged_attention_implementation,
)
from faceter.kernels.schedule.op import tile_list
from faceter.tools.bench.kernels.peers.run import Run, on_jagged
from faceter.tools.bench.kernels.problems import ACTIVATION, Problem


def faceter(problem: Problem) -> Run:
    """The implementation that is chosen for these tensors, or FACETER_IMPL."""
    w, q, kv, (qk_scale, out_scale) = problem.workload, problem.q, problem.kv, problem.scales
    sample = problem.copies[0][0]
    if w.op == "block_attention":
        chosen = block_attention_implementation(sample)
        return on_jagged(
            problem,
            lambda *qkv: block_attention(*qkv, offsets=q.offsets, max_len=q.most, block=w.block, qk_scale=qk_scale),
            chosen.name,
        )
    sides = {"q_offsets": q.offsets, "kv_offsets": kv.offsets, "max_q": q.most, "max_kv": kv.most}
    if w.op == "gdpa":
        options = {"activation": ACTIVATION, "qk_scale": qk_scale, "out_scale": out_scale}
        return on_jagged(problem, lambda *qkv: gdpa(*qkv, **sides, **options), gdpa_implementation(sample).name)
    chosen = jagged_attention_implementation(sample)
    return on_jagged(problem, lambda *qkv: jagged_attention(*qkv, **sides, qk_scale=qk_scale), chosen.name)


def tiles_in_order(problem: Problem) -> Run:
    """The same kernels on a tile list in the order of the examples; both sides must have the same offsets."""
    w, rows, (qk_scale, out_scale) = problem.workload, problem.q, problem.scales
    # With no other side to order them by, tiles keep their order.
    tiles = tile_list(rows.offsets, None, problem.copies[0][0].shape[0])
    offsets, bounds = (rows.offsets, rows.offsets), (rows.most, rows.most)
    if w.op == "gdpa":
        options = (*bounds, ACTIVATION, qk_scale, out_scale, -1, -1, "")
        return on_jagged(problem, lambda *qkv: gdpa_forward(*qkv, *offsets, tiles, tiles, *options))
    options = (*bounds, qk_scale, out_scale, -1, -1, "")
    return on_jagged(problem, lambda *qkv: jagged_attention_forward(*qkv, *offsets, None, tiles, tiles, *options)[0])
