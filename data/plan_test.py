import pytest
from hypothesis import given
from hypothesis import strategies as st

from faceter.data.errors import DataError
from faceter.data.plan import Segment, blocks, shares, steps_and_rows


@given(
    groups=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    block_rows=st.integers(1, 60),
)
def test_ranks_take_the_same_number_of_steps_and_share_the_rows(groups, world_size, batch_size, drop_last, block_rows):
    total = sum(groups)
    segments = [Segment(i, 0, n) for i, n in enumerate(groups)]
    try:
        steps, rows = steps_and_rows(total, world_size, batch_size, drop_last)
    except DataError:
        assert total < world_size * (batch_size if drop_last else 1)
        return
    seen = []
    for rank, mine in enumerate(shares(segments, rows)):
        assert sum(s.rows for s in mine) == rows[rank]
        seen += [(s.group, row) for s in mine for row in range(s.start, s.stop)]
        plan = blocks(mine, block_rows, steps, batch_size)
        assert [s for b in plan for s in b.segments] == mine
        assert all(b.rows >= block_rows for b in plan[:-1])
        assert all(b.rows - b.segments[-1].rows < block_rows for b in plan)
        sizes, size = [], 0
        for block in plan:
            assert [p.start for p in block.pieces] == [0, *(p.stop for p in block.pieces[:-1])]
            assert block.pieces[-1].stop == block.rows
            for piece in block.pieces:
                size += piece.stop - piece.start
                if piece.last:
                    sizes.append(size)
                    size = 0
        assert size == 0
        assert len(sizes) == steps
        assert all(n == batch_size for n in (sizes if drop_last else sizes[:-2]))
        assert min(sizes) >= 1
        assert max(sizes) <= batch_size
    assert len(set(seen)) == len(seen)
    left_out = total - len(seen)
    if drop_last:
        assert left_out < world_size * batch_size
    elif batch_size > 1 and total >= world_size:
        assert left_out == 0
    else:
        assert left_out < world_size


def test_one_rank_reads_everything_in_order():
    segments = [Segment(0, 0, 5), Segment(1, 0, 4)]
    steps, rows = steps_and_rows(9, 1, 4, False)
    assert (steps, rows) == (3, [9])
    assert shares(segments, rows) == [segments]


def test_even_row_groups_go_round_robin_uncut():
    segments = [Segment(i, 0, 10) for i in range(8)]
    assert [[s.group for s in mine] for mine in shares(segments, [40, 40])] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_rank_that_would_end_early_splits_its_last_batch():
    # 5 rows on 2 ranks in batches of 2: rank 0 has 3 rows = 2 + 1, so rank 1 makes 1 + 1 of its 2.
    steps, rows = steps_and_rows(5, 2, 2, False)
    assert (steps, rows) == (2, [3, 2])
    (block,) = blocks([Segment(0, 0, 2)], 8, steps, 2)
    assert [(p.start, p.stop, p.last) for p in block.pieces] == [(0, 1, True), (1, 2, True)]


def test_too_few_rows():
    with pytest.raises(DataError, match=r"3 rows, too few for one batch on each rank. At least 4"):
        steps_and_rows(3, 4, 1, False)
    with pytest.raises(DataError, match=r"too few for one full batch on each rank. At least 8"):
        steps_and_rows(7, 2, 4, True)
