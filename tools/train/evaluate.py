"""Evaluation: a model's predictions on a part of the data, from all processes, and their metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from faceter.data.reader import ParquetReader
from faceter.data.schema import Schema
from faceter.tools.train.config import ReaderOptions
from faceter.tools.train.metrics import Metrics, Predictions, report
from faceter.tools.train.parallel import Processes

Report = dict[str, dict[str, Metrics]]


class Interrupted(Exception):
    """A signal asked the run to stop in the middle of an evaluation."""


def open_reader(
    path: Path, schema: Schema, options: ReaderOptions, processes: Processes, seed: int, *, train: bool
) -> ParquetReader:
    """A reader of this process's rows; a part that is not trained on is read in the files' order."""
    return ParquetReader(
        path,
        schema,
        options.batch_size,
        seed=seed,
        shuffle_rows=options.shuffle_rows if train else 0,
        workers=options.workers,
        rank=processes.rank,
        world_size=processes.world_size,
        balance=options.balance and train,
        sub_batch=options.sub_batch,
        on_bad_row=options.on_bad_row,
    )


@torch.no_grad()
def evaluate(
    model: nn.Module,
    reader: ParquetReader,
    processes: Processes,
    autocast: Callable[[], torch.autocast],
    stop: Callable[[], bool],
) -> Report | None:
    """Metrics per task and domain, exact over all rows of all processes; in the main process only, None elsewhere.

    The model is in training mode again afterwards.

    Raises:
        Interrupted: `stop` said so, in some process.
    """
    schema = reader.schema
    parts = [Predictions.empty(len(schema.labels))]
    model.eval()
    try:
        for host in reader.epoch():
            if processes.any(stop()):
                raise Interrupted
            batch = host.to(processes.device, non_blocking=True)
            with autocast():
                logits_BT = model(batch).logits
            parts.append(Predictions(logits_BT.float().cpu(), host.labels, host.weights, host.domains))
    finally:
        model.train()
    own = Predictions.concatenate(parts)
    everyones = [own]
    if processes.world_size > 1:
        everyones = [None] * processes.world_size if processes.is_main else None
        dist.gather_object(own, everyones, dst=0, group=processes.control)
    if not processes.is_main:
        return None
    domains = [str(v) for v in schema.domain.values] if schema.domain else []
    return report(Predictions.concatenate(everyones), [label.name for label in schema.labels], domains)
