"""Reads one block of a rank's epoch: row groups from disk, checked, decoded, shuffled, balanced, cut into batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from faceter.data.balance import balanced_order
from faceter.data.check import RowChecks
from faceter.data.collate import Chunk, ChunkShape, collate, good_rows, shape_of
from faceter.data.decode import Rows, concatenate, decode
from faceter.data.errors import DataError
from faceter.data.files import ParquetFiles, one_line, open_file
from faceter.data.plan import Block, Segment
from faceter.data.schema import Schema
from faceter.data.shuffle import row_order

_OPEN_FILES = 4


@dataclass(frozen=True)
class Task:
    """A block to read, without its first `skip` pieces (a resumed epoch has had them)."""

    block: Block
    epoch: int
    skip: int = 0


class BlockReader:
    """Turns blocks into chunks. What it does with a block depends on the block and the epoch alone.

    Args:
        files: the data set.
        schema: its schema; only its columns are read.
        rank: rank of this process.
        seed: of the shuffle.
        shuffle: rows of a block are put in random order.
        sub_batch: rows that move together when batches are balanced by length; 0 = not balanced.
        skip_bad: bad rows are left out and counted instead of raising.
        threads: decode the columns of a row group in several threads.
    """

    def __init__(
        self,
        files: ParquetFiles,
        schema: Schema,
        *,
        rank: int,
        seed: int,
        shuffle: bool,
        sub_batch: int,
        skip_bad: bool,
        threads: bool,
    ):
        self.files, self.schema, self.rank, self.seed = files, schema, rank, seed
        self.shuffle, self.sub_batch, self.skip_bad, self.threads = shuffle, sub_batch, skip_bad, threads
        self._columns = list(schema.columns)
        self._open: dict[int, pq.ParquetFile] = {}

    def chunks(self, task: Task) -> Iterator[Chunk]:
        """The chunks of a block one by one, each in memory of its own.

        Raises:
            DataError: a row group that cannot be read, or a bad row.
        """
        rows, parts = self._parts(task)
        for index, dropped in parts:
            shape = shape_of(rows, index, self.schema)
            chunk = shape.carve(self.schema, np.empty(shape.nbytes(self.schema), np.uint8))
            collate(rows, index, self.schema, chunk)
            chunk.dropped = dropped
            yield chunk

    def packed(self, task: Task, allocate) -> tuple[list[tuple[ChunkShape, Counter]], object]:
        """All chunks of a block in one buffer.

        Args:
            task: the block.
            allocate: number of bytes -> (buffer to hand over, uint8 array that is a view of it).

        Returns:
            Shape and dropped rows of each chunk, and the buffer: see `unpack`.
        """
        rows, parts = self._parts(task)
        shapes = [shape_of(rows, index, self.schema) for index, _ in parts]
        buffer, array = allocate(sum(s.nbytes(self.schema) for s in shapes))
        at = 0
        for shape, (index, _) in zip(shapes, parts, strict=True):
            size = shape.nbytes(self.schema)
            collate(rows, index, self.schema, shape.carve(self.schema, array[at : at + size]))
            at += size
        return [(shape, dropped) for shape, (_, dropped) in zip(shapes, parts, strict=True)], buffer

    def unpack(self, chunks: list[tuple[ChunkShape, Counter]], array: np.ndarray) -> Iterator[Chunk]:
        """Views of the chunks that `packed` wrote into `array`."""
        at = 0
        for shape, dropped in chunks:
            size = shape.nbytes(self.schema)
            chunk = shape.carve(self.schema, array[at : at + size])
            chunk.dropped = dropped
            at += size
            yield chunk

    def _parts(self, task: Task) -> tuple[Rows, list[tuple[np.ndarray | slice, Counter]]]:
        """The block's rows, and for each piece the rows that it takes and those that it drops."""
        block = task.block
        rows = concatenate([self._read(s) for s in block.segments])
        order = row_order(len(rows), self.seed, task.epoch, self.rank, block.index) if self.shuffle else None
        if self.sub_batch:
            totals = rows.total_lengths
            totals = totals if order is None else totals[order]
            moved = balanced_order(totals, [p.stop - p.start for p in block.pieces], self.sub_batch)
            order = moved if order is None else order[moved]
        parts = []
        for piece in block.pieces[task.skip :]:
            index = slice(piece.start, piece.stop) if order is None else order[piece.start : piece.stop]
            parts.append(good_rows(rows, index))
        return rows, parts

    def _read(self, segment: Segment) -> Rows:
        group = self.files.row_groups[segment.group]
        file = self.files.files[group.file]
        parquet = self._open.get(group.file)
        if parquet is None:
            if len(self._open) == _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            parquet = self._open[group.file] = open_file(file)
        try:
            table = parquet.read_row_group(group.index, columns=self._columns, use_threads=self.threads)
            changed = table.num_rows != group.rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"cannot read the row group ({one_line(error)})",
                file=file,
                row_group=group.index,
                remedy="The file is damaged or was changed while it was read: write it again",
            ) from None
        if changed:
            raise DataError("the file was changed while it was read", file=file, row_group=group.index)
        checks = RowChecks(
            segment.rows,
            file=file,
            row_group=group.index,
            first_row=group.first_row + segment.start,
            skip=self.skip_bad,
        )
        return decode(table.slice(segment.start, segment.rows), self.schema, checks)

    def close(self) -> None:
        """Closes the files."""
        while self._open:
            self._open.popitem()[1].close()
