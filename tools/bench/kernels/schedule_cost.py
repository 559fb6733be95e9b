"""What a tile list costs: launched from Python, and as device work alone."""

from __future__ import annotations

import torch

from faceter.kernels.schedule.op import TILE, tile_list
from faceter.kernels.schedule.reference import tile_list_reference
from faceter.tools.bench.kernels.measure import row
from faceter.tools.bench.kernels.timing import alternate, reason_of
from faceter.tools.bench.kernels.workloads import LOG_NORMAL, Workload, draw_lengths

WORKLOAD = Workload("tile-list", 2048, 4, 128, 2048, 2048, LOG_NORMAL, kv="same", quick=())
LAUNCHED, REPLAYED = "launched one by one", "CUDA graph"
# Different offsets, which are small and lie in the L2 as they do where a batch has just been made.
_COPIES, _CALLS_OF_GRAPH = 4, 20


def measure(device: torch.device, tiny: bool) -> list[dict]:
    """A row for each way to call it; forward is all there is."""
    workload = WORKLOAD.tiny() if tiny else WORKLOAD
    generator = torch.Generator().manual_seed(0)
    args = []
    for _ in range(_COPIES):
        lengths = draw_lengths(workload.lengths, workload.batch, workload.max_q, generator)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
        args.append((offsets.to(device), offsets.to(device), int(offsets[-1])))
    expected = [tile_list_reference(*a, TILE) for a in args]

    def result(peer: str, call, scale: float, device_only: bool) -> dict:
        wrong = []

        def check(name: str, found: dict[int, torch.Tensor], copy: int) -> None:
            wrong.extend(i for i, x in found.items() if not torch.equal(x, expected[i]))

        timing = alternate({peer: call}, _COPIES, device, 0.2, check, device_only)[peer]
        if timing.failure:
            return row(workload, peer, "forward", "none", timing.failure)
        numbers = {"ms": timing.milliseconds * scale, "samples": timing.samples, "calls": timing.calls, "scale": scale}
        reason = "not the list of its definition" if wrong else ""
        return row(workload, peer, "forward", "wrong" if wrong else "ok", reason, **numbers)

    rows = [result(LAUNCHED, lambda copy: {copy: tile_list(*args[copy])}, 1.0, False)]
    if device.type != "cuda":
        return [*rows, row(workload, REPLAYED, "forward", "none", "there is no GPU")]
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            lists = {i: tile_list(*args[i % _COPIES]) for i in range(_CALLS_OF_GRAPH)}
    except Exception as error:
        return [*rows, row(workload, REPLAYED, "forward", "none", reason_of(error))]
    last = {i % _COPIES: x for i, x in lists.items()}

    def replay(copy: int) -> dict[int, torch.Tensor]:
        graph.replay()
        return last

    return [*rows, result(REPLAYED, replay, 1 / _CALLS_OF_GRAPH, True)]
