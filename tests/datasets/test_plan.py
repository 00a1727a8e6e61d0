"""The order of reading."""

import itertools

import pytest

from prvr.datasets.plan import batches, epoch_order, share

WORLDS = [1, 2, 3, 4, 8]
UNEVEN = [3, 1, 7, 2, 9, 4, 4, 4, 11, 1]


@pytest.mark.parametrize("sizes", [[1], [5, 5], UNEVEN])
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


@pytest.mark.parametrize("world", WORLDS)
def test_the_shares_of_all_ranks_are_the_batch_whatever_the_world(world: int) -> None:
    plan = batches(epoch_order(UNEVEN, seed=5, epoch=1, window=3), 8)
    for batch in plan:
        shares = [share(batch, rank=rank, world=world) for rank in range(world)]
        assert list(itertools.chain(*shares)) == batch
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        if len(batch) >= world:
            assert all(shares), "no rank starves, however uneven the shards"


def test_a_training_goes_on_at_a_step_in_another_world() -> None:
    plan = batches(epoch_order(UNEVEN, seed=5, epoch=1), 6)
    for before, after in itertools.product(WORLDS, WORLDS):
        seen = [share(batch, rank=rank, world=before) for batch in plan[:3] for rank in range(before)]
        seen += [share(batch, rank=rank, world=after) for batch in plan[3:] for rank in range(after)]
        assert list(itertools.chain(*seen)) == list(itertools.chain(*plan))


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_of_no_world(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is none of a world of {world}"):
        share([1, 2], rank=rank, world=world)
