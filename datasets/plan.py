"""The order of reading: a pure function of (seed, epoch), the same for every world size and number of workers."""

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
    """The order cut into batches; the last may be smaller, as in the papers' code."""
    return [list(order[start : start + size]) for start in range(0, len(order), size)]
