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
import weakref
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from faceter.data.blocks import BlockReader, Task
from faceter.data.collate import Chunk
from faceter.data.errors import DataError


class WorkerError(RuntimeError):
    """A worker process of the reader died."""


# Segments that a worker uses again; more than these at a time are used once.
_SLOTS = 64


class _Segments:
    """Shared memory of one worker. A segment is used again once nobody holds what was written into it: a fresh one
    costs a page fault for every 4 KiB, together a third of the time that decoding takes.

    Args:
        used: (_SLOTS,) uint8 in shared memory: 1 = held. The worker sets it, the main process clears it.
    """

    def __init__(self, used: np.ndarray):
        self.used = used
        self.tensors: list[torch.Tensor] = []

    def take(self, nbytes: int) -> tuple[tuple[torch.Tensor, int], np.ndarray]:
        """((segment, slot), its bytes): at least `nbytes`. Slot -1 is never used again."""
        free = [slot for slot in range(len(self.tensors)) if not self.used[slot]]
        slot = next((s for s in free if self.tensors[s].numel() >= nbytes), None)
        if slot is None:
            # Some room, so that the next block, a little larger, fits too; what is not written takes no memory.
            tensor = _shared_memory(nbytes + nbytes // 4)
            if free:
                slot = free[0]
                self.tensors[slot] = tensor
            elif len(self.tensors) < len(self.used):
                slot = len(self.tensors)
                self.tensors.append(tensor)
            else:
                return (tensor, -1), tensor.numpy()
        return (self.tensors[slot], slot), self.tensors[slot].numpy()


def _shared_memory(nbytes: int) -> torch.Tensor:
    # Written in place: a tensor that is made elsewhere would be copied into shared memory on its way out.
    storage = torch.UntypedStorage._new_shared(max(nbytes, 1), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class _Blocks(Dataset):
    """Task -> (chunks, segment, worker, slot) by `BlockReader.packed`, or the DataError.

    An exception that travels through DataLoader would lose its attributes.

    Args:
        reader: of blocks.
        used: (workers, _SLOTS): see `_Segments`.
    """

    def __init__(self, reader: BlockReader, used: torch.Tensor):
        self.reader, self.used = reader, used
        self.segments: _Segments | None = None  # made in the worker

    def __getitem__(self, task: Task):
        worker = get_worker_info().id
        if self.segments is None:
            self.segments = _Segments(self.used[worker].numpy())
        try:
            chunks, (tensor, slot) = self.reader.packed(task, self.segments.take)
        except DataError as error:
            return error
        if slot >= 0:
            self.segments.used[slot] = 1
        return chunks, tensor, worker, slot


def _release(used: np.ndarray, worker: int, slot: int) -> None:
    used[worker, slot] = 0


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

    Each worker makes one block ahead: about workers + 1 blocks are in memory at a time. What the chunks' arrays lie in
    is written again once all views of a block are gone.

    Raises:
        DataError: as `BlockReader.chunks`, when the block that has the fault is reached.
        WorkerError: a worker was killed.
    """
    used = torch.zeros(workers, _SLOTS, dtype=torch.uint8).share_memory_()
    loader = DataLoader(
        _Blocks(reader, used),
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
            chunks, tensor, worker, slot = item
            array = tensor.numpy()
            if slot >= 0:
                # Every view's base is this array.
                weakref.finalize(array, _release, used.numpy(), worker, slot).atexit = False
            del item, tensor
            yield from reader.unpack(chunks, array)
            del array  # now, not when the next block is there
    finally:
        del items  # ends the workers now, even while a traceback holds this frame
