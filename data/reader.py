"""The reader: Parquet files to a stream of batches that is sharded, shuffled, balanced, and can be resumed exactly.

How it works: the footers alone fix which rows each rank reads in an epoch and where its batches end (`plan`). A rank's
epoch is a sequence of blocks of a few row groups. A block is read, checked, shuffled and cut into batches as a whole
(`blocks`), in this process or in workers; what it gives depends on the seed, the epoch and the block alone, so that a
position is two numbers (epoch, step), the same on all ranks, and the number of workers changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from faceter.data.batch import Batch, EventSequence
from faceter.data.blocks import BlockReader, Task
from faceter.data.check import check_types
from faceter.data.collate import Chunk, merge
from faceter.data.errors import DataError
from faceter.data.files import read_footers
from faceter.data.plan import Block, Segment, batch_end, blocks, shares, steps_and_rows
from faceter.data.schema import Schema
from faceter.data.shuffle import row_group_order
from faceter.data.workers import read_with_workers

# A batch that lies in two blocks is put together by the main process: with blocks of some batches that is rare.
_BATCHES_PER_BLOCK = 4


class ParquetReader:
    """Batches of a data set, epoch after epoch.

    Memory: a block is the shuffle buffer, or four batches if that is more, plus at most one row group; there are
    workers + 1 of them in shared memory, and one as decoded rows in each worker. Write row groups of 10 to 100 MB.

    Args:
        path: a folder (every `*.parquet` below it), one file, or a list of files.
        schema: the data set's schema.
        batch_size: rows per batch of this rank.
        seed: of the shuffle.
        shuffle_rows: size of the shuffle buffer in rows. 0 keeps the file order; otherwise row groups come in an order
            drawn from (seed, epoch), and rows are shuffled within each run of row groups that has at least this many.
        workers: processes that read ahead; 0 reads in this process.
        rank: of this process among `world_size`. All ranks give the same number of batches: see `plan` for the rule.
        world_size: number of ranks.
        balance: sub-batches of rows move between the batches of a block until all have nearly the same number of events
            (this changes the file order).
        sub_batch: rows that move together.
        on_bad_row: "raise", or "skip": the row is dropped and counted in `bad_rows`. Batches end where they would with
            the bad rows in them, hence may be smaller: so ranks stay in step, and a position stays a number.
        drop_last: only full batches.

    Attributes:
        num_rows: rows of the whole data set.
        steps_per_epoch: batches of this (and every) rank per epoch.
        bad_rows: (file, column, problem) -> rows dropped up to the present position.

    Raises:
        DataError: the files or the schema do not fit (see `files.read_footers`, `check.check_types`,
            `plan.steps_and_rows`).
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike | Sequence[str | os.PathLike],
        schema: Schema,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle_rows: int = 0,
        workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        balance: bool = False,
        sub_batch: int = 128,
        on_bad_row: str = "raise",
        drop_last: bool = False,
    ):
        if batch_size < 1 or shuffle_rows < 0 or workers < 0 or seed < 0:
            raise ValueError("batch_size must be at least 1; shuffle_rows, workers and seed at least 0")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in [0, {world_size}), is {rank}")
        if on_bad_row not in ("raise", "skip"):
            raise ValueError(f'on_bad_row must be "raise" or "skip", is {on_bad_row!r}')
        if balance and not 1 <= sub_batch <= batch_size // 2:
            raise ValueError(
                f"balance needs at least two sub-batches per batch: sub_batch {sub_batch} is above half of "
                f"batch_size {batch_size}"
            )
        self.schema, self.batch_size, self.workers, self.drop_last = schema, batch_size, workers, drop_last
        self.seed, self.shuffle_rows, self.rank, self.world_size = seed, shuffle_rows, rank, world_size
        self.balance, self.sub_batch, self.on_bad_row = balance, sub_batch, on_bad_row
        self._files = read_footers(path)
        check_types(self._files.schema, schema, self._files.files[0])
        self.num_rows = self._files.num_rows
        self.steps_per_epoch, self._rows = steps_and_rows(self.num_rows, world_size, batch_size, drop_last)
        self.bad_rows: Counter = Counter()
        self._epoch = self._step = 0
        self._running: weakref.ref | None = None
        self._blocks = BlockReader(
            self._files,
            schema,
            rank=rank,
            seed=seed,
            shuffle=shuffle_rows > 0,
            sub_batch=sub_batch if balance else 0,
            skip_bad=on_bad_row == "skip",
            threads=workers == 0,
        )

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, batches of it already given)."""
        return self._epoch, self._step

    def epoch(self) -> Iterator[Batch]:
        """One pass over this rank's rows from the present position to the end of the epoch.

        A pass that is left early keeps its position: the next call goes on there. A new call ends an older pass.

        Raises:
            DataError: a row group that cannot be read, a bad row (unless skipped), or, on several ranks, a batch of
                which every row is bad. One rank alone leaves out such a batch.
            workers.WorkerError: a worker process was killed.
        """
        self._end_pass()
        batches = self._pass()
        self._running = weakref.ref(batches)
        return batches

    def _pass(self) -> Iterator[Batch]:
        rows = self._rows[self.rank]
        done = batch_end(self._step, self.steps_per_epoch, rows, self.batch_size)
        tasks = _remaining(self._plan(self._epoch), self._epoch, done)
        ends = (piece.last for task in tasks for piece in task.block.pieces[task.skip :])
        parts: list[Chunk] = []
        # Closed by name: since Python 3.12 the close of a generator that catches nothing leaves its frame as it is, and
        # with that the workers, as long as someone holds the pass.
        with closing(self._chunks(tasks)) as chunks:
            for chunk, last in zip(chunks, ends, strict=True):
                parts.append(chunk)
                if not last:
                    continue
                whole = merge(parts, self.schema)
                parts = []
                self._step += 1
                self.bad_rows.update(whole.dropped)
                if len(whole):
                    yield to_batch(whole, self.schema)
                elif self.world_size > 1:
                    (file, column, problem), _ = whole.dropped.most_common(1)[0]
                    raise DataError(
                        f"every row of a batch is bad: {problem}",
                        file=file,
                        column=column,
                        remedy="Ranks must give the same number of batches: repair the file or leave it out",
                    )
        self._epoch, self._step = self._epoch + 1, 0

    def _plan(self, epoch: int) -> list[Block]:
        groups = self._files.row_groups
        order = row_group_order(len(groups), self.seed, epoch).tolist() if self.shuffle_rows else range(len(groups))
        segments = [Segment(i, 0, groups[i].rows) for i in order]
        mine = shares(segments, self._rows)[self.rank]
        block_rows = max(self.shuffle_rows, _BATCHES_PER_BLOCK * self.batch_size)
        return blocks(mine, block_rows, self.steps_per_epoch, self.batch_size)

    def _chunks(self, tasks: list[Task]) -> Iterator[Chunk]:
        if self.workers:
            yield from read_with_workers(self._blocks, tasks, min(self.workers, max(1, len(tasks))))
        else:
            for task in tasks:
                yield from self._blocks.chunks(task)

    def state_dict(self) -> dict[str, object]:
        """Position and what it depends on, as plain numbers and strings; the same on all ranks but for `bad_rows`."""
        return {
            **self._identity(),
            "epoch": self._epoch,
            "step": self._step,
            "bad_rows": [[*key, count] for key, count in self.bad_rows.items()],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Goes to the position of `state`. `workers` may differ from those of the reader that made it.

        Raises:
            DataError: the state is not a reader's, or was made with other data or other arguments.
        """
        identity = self._identity()
        missing = [key for key in (*identity, "epoch", "step", "bad_rows") if key not in state]
        if missing:
            raise DataError(f"not the state of a reader: {', '.join(missing)} missing")
        for key, mine in identity.items():
            if state[key] != mine:
                raise DataError(
                    f"the reader's state was saved with another {key}: {state[key]}, now {mine}",
                    remedy="Resume with the same data and reader arguments, or start a new run",
                )
        self._end_pass()
        self._epoch, self._step = int(state["epoch"]), int(state["step"])
        self.bad_rows = Counter({(file, column, problem): n for file, column, problem, n in state["bad_rows"]})

    def _identity(self) -> dict[str, object]:
        """All on which the stream of batches depends."""
        return {
            "data": self._files.fingerprint,
            "schema": hashlib.sha256(self.schema.to_yaml().encode()).hexdigest(),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle_rows": self.shuffle_rows,
            "world_size": self.world_size,
            "sub_batch": self.sub_batch if self.balance else 0,
            "drop_last": self.drop_last,
            "on_bad_row": self.on_bad_row,
        }

    def _end_pass(self) -> None:
        batches = self._running and self._running()
        if batches is not None:
            batches.close()
        self._running = None

    def close(self) -> None:
        """Ends the workers of a pass that was left early, and closes the files."""
        self._end_pass()
        self._blocks.close()

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _remaining(plan: list[Block], epoch: int, done: int) -> list[Task]:
    """Tasks for what comes after the first `done` rows of a rank's epoch."""
    tasks, begin = [], 0
    for block in plan:
        skip = sum(begin + piece.stop <= done for piece in block.pieces)
        begin += block.rows
        if skip < len(block.pieces):
            tasks.append(Task(block, epoch, skip))
    return tasks


def to_batch(chunk: Chunk, schema: Schema) -> Batch:
    """A batch whose tensors are views of the chunk's arrays."""
    n = len(chunk)
    lengths, at = torch.from_numpy(chunk.row_lengths), 0
    events = {}
    for g, group in enumerate(schema.sequences):
        offsets = torch.zeros(n + 1, dtype=torch.int64)
        torch.cumsum(lengths[at], 0, out=offsets[1:])
        events[group.name] = EventSequence(
            offsets,
            torch.from_numpy(chunk.event_timestamps[g]),
            torch.from_numpy(chunk.event_dense[g]),
            max(1, int(lengths[at].max())),
        )
        at += len(group.ids)
    bag = [c.name for c in schema.bag_columns]
    row = [c.name for c in schema.row_columns]
    return Batch(
        torch.from_numpy(chunk.dense),
        _keyed(bag, chunk.bag_values, chunk.bag_lengths, chunk.bag_totals),
        _keyed(row, chunk.row_values, chunk.row_lengths, chunk.row_totals),
        events,
        torch.from_numpy(chunk.timestamps),
        torch.from_numpy(chunk.labels),
        torch.from_numpy(chunk.weights),
        torch.from_numpy(chunk.domains),
    )


def _keyed(keys: list[str], values: np.ndarray, lengths: np.ndarray, totals: Sequence[int]) -> KeyedJaggedTensor:
    # The totals are known here: without them torchrec would sum the lengths and fetch the sums from the device.
    return KeyedJaggedTensor(
        keys,
        torch.from_numpy(values),
        lengths=torch.from_numpy(lengths.reshape(-1)),
        stride=lengths.shape[1],
        length_per_key=list(totals),
        offset_per_key=[0, *np.cumsum(totals, dtype=np.int64).tolist()],
    )
