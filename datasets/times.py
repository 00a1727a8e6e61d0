"""Steps in time: where each begins and ends, and rows of one clock on another."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[Any]


def edges(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Borders [T + 1] between steps that stand at ``times`` [T]: half-way, and as far outside at both ends, from 0 on."""
    if len(times) == 1:
        return np.array([0.0, 2.0 * times[0]])
    middle = (times[1:] + times[:-1]) / 2
    return np.concatenate([[max(0.0, 2 * times[0] - middle[0])], middle, [2 * times[-1] - middle[-1]]])


def on_clock(rows: Array, own: NDArray[np.float64], clock: NDArray[np.float64]) -> tuple[Array, float]:
    """``rows`` [N, E] that stand at ``own`` [N] seconds, as rows [T, E] that stand at ``clock`` [T]: the mean of those that
    lie in a step's span; where none does, the nearest (of two, the earlier). Both times rise. Gives also how far the
    furthest row that was taken for a step stands away from it, in seconds.
    """
    borders = edges(clock)
    first, last = np.searchsorted(own, borders[:-1]), np.searchsorted(own, borders[1:])
    last[-1] = np.searchsorted(own, borders[-1], side="right")
    nearest = np.abs(own[:, None] - clock).argmin(axis=0)
    empty = last <= first
    first, last = np.where(empty, nearest, first), np.where(empty, nearest + 1, last)
    sums = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0, dtype=np.float64)])
    means = (sums[last] - sums[first]) / (last - first)[:, None]
    away = np.maximum(np.abs(own[first] - clock), np.abs(own[last - 1] - clock)).max()
    return means.astype(rows.dtype), float(away)
