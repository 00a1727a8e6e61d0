"""The order of reading: a pure function of (seed, epoch, step), the same for every world size and number of workers.

``epoch_order`` is the order of an epoch's videos, ``batches`` cuts it into global batches, one a step, and ``share`` gives
each rank its part of one. A training that goes on at step k, on however many ranks, takes ``batches(...)[k:]``.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

WINDOW = 8
"""Shards whose videos are mixed with each other: how many are read from at one time."""


def epoch_order(shard_sizes: Sequence[int], *, seed: int, epoch: int, window: int = WINDOW) -> list[int]:
    """Positions of all videos, each once: shards shuffled, and videos shuffled within each window of shards."""
    rng = np.random.default_rng([seed, epoch])
    starts = [0, *accumulate(shard_sizes)]
    shards = rng.permutation(len(shard_sizes))
    order: list[int] = []
    for first in range(0, len(shards), window):
        positions = [np.arange(starts[shard], starts[shard + 1]) for shard in shards[first : first + window]]
        order.extend(rng.permutation(np.concatenate(positions)).tolist())
    return order


def batches(order: Sequence[int], size: int) -> list[list[int]]:
    """The order cut into global batches; the last may be smaller, as in the papers' code."""
    return [list(order[start : start + size]) for start in range(0, len(order), size)]


def share(batch: Sequence[int], *, rank: int, world: int) -> list[int]:
    """The part of a global batch that one of ``world`` ranks reads: in the order of ranks, the parts are the batch.

    They differ by one video at most. Every rank takes part in every step; one's part is empty only where the batch, which can
    be the epoch's last alone, has fewer videos than there are ranks.

    Raises:
        ValueError: a rank that is none of the world's.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is none of a world of {world}")
    return list(batch[len(batch) * rank // world : len(batch) * (rank + 1) // world])
