import numpy as np

from faceter.data.shuffle import row_group_order, row_order


def test_orders_are_permutations_and_differ_by_all_that_names_them():
    orders = [row_group_order(50, 0, 0), row_group_order(50, 1, 0), row_group_order(50, 0, 1)]
    orders += [row_order(50, *key) for key in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]]
    assert all(np.array_equal(np.sort(o), np.arange(50)) for o in orders)
    assert len({tuple(o) for o in orders}) == len(orders)


def test_orders_are_the_same_again():
    assert np.array_equal(row_order(50, 3, 2, 1, 7), row_order(50, 3, 2, 1, 7))
    assert np.array_equal(row_group_order(50, 3, 2), row_group_order(50, 3, 2))
