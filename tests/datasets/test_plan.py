"""The order of reading."""

import pytest

from prvr.datasets.plan import batches, epoch_order


@pytest.mark.parametrize("sizes", [[1], [5, 5], [3, 1, 7, 2, 9, 4, 4, 4, 11, 1]])
def test_every_video_once(sizes: list[int]) -> None:
    for epoch in range(3):
        assert sorted(epoch_order(sizes, seed=0, epoch=epoch, window=3)) == list(range(sum(sizes)))


def test_a_pure_function_of_seed_and_epoch() -> None:
    sizes = [10, 10, 10]
    assert epoch_order(sizes, seed=1, epoch=2) == epoch_order(sizes, seed=1, epoch=2)
    orders = [epoch_order(sizes, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_a_window_reads_from_few_shards() -> None:
    order = epoch_order([10] * 6, seed=0, epoch=0, window=2)
    for first in range(0, 60, 20):
        assert len({position // 10 for position in order[first : first + 20]}) == 2


def test_the_last_batch_may_be_smaller() -> None:
    assert batches([4, 2, 0, 1, 3], 2) == [[4, 2], [0, 1], [3]]
