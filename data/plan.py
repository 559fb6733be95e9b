"""Who reads what, and where the batches end: pure arithmetic on the footers' row counts.

Every rank gets the same number of batches, since a rank that runs out first would leave the others waiting for its
gradients. With N rows, W ranks and batches of B rows:

- `drop_last`: floor(N / W / B) full batches on each rank; the rest of the epoch's order is left out.
- otherwise each rank has floor(N / W) or one more row, hence ceil(ceil(N / W) / B) batches, full but for the last. A
  rank whose rows would end one batch early gives the last row of its last full batch a batch of its own. Where even
  that fails (fewer rows than batches: B = 1, or N < W) up to W - 1 rows are left out.

Row groups go round-robin to the ranks. A rank with too many rows gives the end of its list to one with too few: no row
group is read by many ranks unless there are fewer row groups than ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faceter.data.errors import DataError


@dataclass(frozen=True)
class Segment:
    """Rows [start, stop) of the row group with index `group` in the data set."""

    group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Piece:
    """A batch, or the part of one that lies in a block.

    Attributes:
        start: first row inside the block.
        stop: past the last row inside the block.
        last: True if the batch ends here.
    """

    start: int
    stop: int
    last: bool


@dataclass(frozen=True)
class Block:
    """Consecutive segments of a rank: the unit that is read, shuffled and handed over as one.

    Attributes:
        index: position of the block in the rank's epoch.
        segments: what it consists of.
        pieces: how its rows fall into batches.
    """

    index: int
    segments: tuple[Segment, ...]
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.segments)


def steps_and_rows(num_rows: int, world_size: int, batch_size: int, drop_last: bool) -> tuple[int, list[int]]:
    """Batches per rank and epoch, and rows of each rank (see the rule above).

    Raises:
        DataError: too few rows for one batch per rank.
    """
    share = num_rows // world_size
    if drop_last:
        steps = share // batch_size
        rows = [steps * batch_size] * world_size
    else:
        rows = [share + (rank < num_rows % world_size) for rank in range(world_size)]
        steps = -(-rows[0] // batch_size)
        if rows[-1] < steps:
            rows = [share] * world_size
            steps = -(-share // batch_size)
    if not steps:
        need = world_size * (batch_size if drop_last else 1)
        raise DataError(
            f"the data set has {num_rows} rows, too few for one {'full ' if drop_last else ''}batch on each rank",
            remedy=f"At least {need} are needed: use fewer ranks or a smaller batch",
        )
    return steps, rows


def shares(segments: Sequence[Segment], rows: Sequence[int]) -> list[list[Segment]]:
    """Round-robin over ranks, levelled to `rows[r]` rows for rank r; rows left over belong to none."""
    world_size = len(rows)
    lists = [list(segments[rank::world_size]) for rank in range(world_size)]
    lacking = [want - sum(s.rows for s in mine) for mine, want in zip(lists, rows, strict=True)]
    spare: list[Segment] = []
    for rank, mine in enumerate(lists):
        while lacking[rank] < 0:
            segment = mine.pop()
            keep = max(0, segment.rows + lacking[rank])
            if keep:
                mine.append(Segment(segment.group, segment.start, segment.start + keep))
            spare.append(Segment(segment.group, segment.start + keep, segment.stop))
            lacking[rank] += segment.rows - keep
    spare.reverse()
    for rank, mine in enumerate(lists):
        while lacking[rank] > 0:
            segment = spare.pop()
            take = min(lacking[rank], segment.rows)
            mine.append(Segment(segment.group, segment.start, segment.start + take))
            if take < segment.rows:
                spare.append(Segment(segment.group, segment.start + take, segment.stop))
            lacking[rank] -= take
    return lists


def batch_end(step: int, steps: int, rows: int, batch_size: int) -> int:
    """Rows of a rank's epoch up to and including its batch number `step` (1-based)."""
    # The second term leaves at least one row for every batch to come.
    return min(step * batch_size, rows - (steps - step))


def blocks(segments: Sequence[Segment], block_rows: int, steps: int, batch_size: int) -> list[Block]:
    """Cuts a rank's segments into blocks of at least `block_rows` rows (the last may be smaller).

    A segment is never cut: a block has less than `block_rows` rows plus one row group.
    """
    rows = sum(s.rows for s in segments)
    found: list[Block] = []
    begin, step = 0, 1
    pending: list[Segment] = []
    for i, segment in enumerate(segments):
        pending.append(segment)
        size = sum(s.rows for s in pending)
        if size < block_rows and i + 1 < len(segments):
            continue
        pieces, at = [], begin
        while at < begin + size:
            end = batch_end(step, steps, rows, batch_size)
            stop = min(end, begin + size)
            pieces.append(Piece(at - begin, stop - begin, stop == end))
            step += stop == end
            at = stop
        found.append(Block(len(found), tuple(pending), tuple(pieces)))
        begin, pending = begin + size, []
    return found
