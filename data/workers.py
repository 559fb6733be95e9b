"""Worker processes: torch's DataLoader, one block per item, one shared-memory tensor per block.

The loader hands out blocks round-robin and gives them back in order, notices a killed worker, and ends its workers with
the iterator; workers end by themselves when their parent is gone.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from faceter.data.blocks import BlockReader, Task
from faceter.data.collate import Chunk
from faceter.data.errors import DataError


class WorkerError(RuntimeError):
    """A worker process of the reader died."""


class _Blocks(Dataset):
    """Task -> what `BlockReader.packed` makes of it, or the DataError.

    An exception that travels through DataLoader would lose its attributes."""

    def __init__(self, reader: BlockReader):
        self.reader = reader

    def __getitem__(self, task: Task):
        try:
            return self.reader.packed(task, _shared_memory)
        except DataError as error:
            return error


def _shared_memory(nbytes: int):
    # Written in place: a tensor that is made elsewhere would be copied into shared memory on its way out.
    storage = torch.UntypedStorage._new_shared(max(nbytes, 1), device="cpu")
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    return tensor, tensor.numpy()


def _as_it_is(item):
    return item


def _start_worker(parent: int, _: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent. The loader's own watch takes whoever is the parent when the worker has
    started up for the one to watch, and a worker that outlives its parent until then would stay for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _without_child_signal(loader: DataLoader):
    """Starts the workers, but not the SIGCHLD handler of torch, which raises wherever the main thread happens to be, a
    half-written checkpoint for instance. Without it the iterator finds a dead worker when it next waits for it."""
    if threading.current_thread() is not threading.main_thread():
        return iter(loader)  # no handler can be set from here
    before = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        if before is not None:  # None: not set from Python
            signal.signal(signal.SIGCHLD, before)


def read_with_workers(reader: BlockReader, tasks: list[Task], workers: int) -> Iterator[Chunk]:
    """The chunks of all tasks, in order, made by `workers` processes.

    Each worker makes one block ahead: about workers + 1 blocks are in memory at a time.

    Raises:
        DataError: as `BlockReader.chunks`, when the block that has the fault is reached.
        WorkerError: a worker was killed.
    """
    loader = DataLoader(
        _Blocks(reader),
        batch_size=None,
        sampler=tasks,
        num_workers=workers,
        prefetch_factor=1,
        collate_fn=_as_it_is,
        worker_init_fn=functools.partial(_start_worker, os.getpid()),
        generator=torch.Generator(),  # else it would draw from the global one, which seeds dropout
    )
    items = _without_child_signal(loader)
    try:
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise WorkerError(
                    f"a reader worker died ({' '.join(str(error).split())}). Most often memory ran out, or /dev/shm is "
                    "too small: use fewer workers, smaller row groups or a smaller shuffle buffer"
                ) from error
            if isinstance(item, DataError):
                raise item
            chunks, tensor = item
            yield from reader.unpack(chunks, tensor.numpy())
    finally:
        del items  # ends the workers now, even while a traceback holds this frame
