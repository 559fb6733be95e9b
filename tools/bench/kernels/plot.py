"""Bars from the JSON: a picture for each family."""

from __future__ import annotations

import statistics
from pathlib import Path

from faceter.tools.bench.kernels.report import MEMORY_BOUND, families
from faceter.tools.bench.kernels.workloads import (
    COMPILED,
    EAGER,
    FACETER,
    FLEX,
    IN_ORDER,
    SDPA_CUDNN,
    SDPA_MASK,
    VARLEN,
)

_DIRECTIONS = ("forward", "backward")
# A peer has its color in all pictures.
_COLORS = {
    FACETER: "#c1121f",
    VARLEN: "#1d3557",
    SDPA_CUDNN: "#457b9d",
    SDPA_MASK: "#8ab6d6",
    COMPILED: "#e9a03b",
    EAGER: "#bcb8b1",
    FLEX: "#588157",
    IN_ORDER: "#bcb8b1",
}


def plot(results: dict, stem: Path) -> list[Path]:
    """Saves `<stem>-<family>.png` for each family that has rates; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    files = []
    for family in families(results):
        rows = [row for row in results["rows"] if row["family"] == family and row["status"] == "ok" and "tflops" in row]
        if rows:
            files.append(stem.with_name(f"{stem.name}-{family}.png"))
            _figure(results, family, rows).savefig(files[-1], dpi=120, bbox_inches="tight")
    return files


def _figure(results: dict, family: str, rows: list[dict]):
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    memory = family in MEMORY_BOUND
    unit, limit, value = ("GB/s", "copy_gbs", "gbs") if memory else ("TFLOP/s", "cublas_tflops", "tflops")
    rate = statistics.mean(r[limit] for r in results["rates"])
    found = {(row["direction"], row["workload"], row["peer"]): row[value] for row in rows}
    # Bars side by side, one for each peer that a workload has, and a gap of one after it.
    bars, ticks, labels = [], [], []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        peers = [peer for peer in _COLORS if any((d, workload, peer) in found for d in _DIRECTIONS)]
        begin = bars[-1][0] + 2 if bars else 0
        bars += [(begin + i, workload, peer) for i, peer in enumerate(peers)]
        ticks.append(begin + (len(peers) - 1) / 2)
        labels.append(_label(workload))
    # Each has the room of its label, or of its bars.
    figure = Figure(figsize=(1.5 + max(5, 0.8 * len(ticks), 0.2 * (bars[-1][0] + 1)), 6.5), layout="constrained")
    for axes, direction in zip(figure.subplots(2, sharex=True), _DIRECTIONS, strict=True):
        heights = [found.get((direction, workload, peer), 0.0) for _, workload, peer in bars]
        drawn = axes.bar([x for x, *_ in bars], heights, 0.94, color=[_COLORS[peer] for *_, peer in bars])
        axes.bar_label(drawn, [f"{h:,.0f}" if h else "" for h in heights], fontsize=7, rotation=90, padding=2)
        axes.axhline(rate, color="black", linestyle="--", linewidth=1)
        axes.set(ylabel=f"{direction}, {unit}", ylim=(0, 1.15 * max(rate, *(row[value] for row in rows))))
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xticks(ticks, labels, fontsize=8)
    there = [peer for peer in _COLORS if any(peer == p for *_, p in bars)]
    handles = [Patch(color=_COLORS[peer], label=peer) for peer in there]
    figure.legend(handles=handles, ncols=len(handles), fontsize=8, frameon=False, loc="outside lower center")
    line = "copy of 2 GiB" if memory else "cuBLAS bf16 8192³"
    figure.suptitle(f"{family}: {results['machine']['device']}, actual lengths; dashed: {line}", fontsize=10)
    return figure


def _label(name: str) -> str:
    """A line for each size, for lengths, and for batch and heads."""
    batch, heads, *sizes, lengths = name.partition("/")[2].split()
    return "\n".join([*sizes, lengths, f"{batch} {heads}"])
