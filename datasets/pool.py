"""Raw feature steps to the two inputs that the models of this field take, by the formulas of the released code.

Source: MS-SL (Dong et al., ACM MM 2022), ``average_to_fixed_length`` and ``uniform_feature_sampling`` of its released data
provider. Both cut T steps into bins at ``min(round(i * T / bins), T - 1)``, round half to even. The last cut is clamped to
T - 1 and is exclusive, so the last step is left out whenever the last bin holds another: as published.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CLIPS = 32
MAX_FRAMES = 128


@dataclass(frozen=True)
class Pooled:
    """Pooled rows ``values`` [N, E] float32 and the seconds that each stands for, ``spans`` [N, 2]."""

    values: NDArray[np.float32]
    spans: NDArray[np.float32]


def to_clips(steps: NDArray[np.floating], times: NDArray[np.float64], clips: int = CLIPS) -> Pooled:
    """Always ``clips`` rows; where there are fewer steps, steps repeat. ``steps`` [T, E], ``times`` [T] seconds."""
    return _pooled(steps, times, clips)


def to_frames(steps: NDArray[np.floating], times: NDArray[np.float64], limit: int = MAX_FRAMES) -> Pooled:
    """At most ``limit`` rows; the steps as they are where there are no more than that."""
    if len(steps) > limit:
        return _pooled(steps, times, limit)
    edges = _edges(times)
    return Pooled(steps.astype(np.float32), np.stack([edges[:-1], edges[1:]], axis=1).astype(np.float32))


def _pooled(steps: NDArray[np.floating], times: NDArray[np.float64], bins: int) -> Pooled:
    cuts = np.minimum(np.round(np.arange(bins + 1) / bins * len(steps)).astype(np.int64), len(steps) - 1)
    starts, stops = cuts[:-1], np.maximum(cuts[1:], cuts[:-1] + 1)
    sums = np.concatenate([np.zeros((1, steps.shape[1])), np.cumsum(steps, axis=0, dtype=np.float64)])
    values = (sums[stops] - sums[starts]) / (stops - starts)[:, None]
    edges = _edges(times)
    return Pooled(values.astype(np.float32), np.stack([edges[starts], edges[stops]], axis=1).astype(np.float32))


def _edges(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Borders [T + 1] between steps that stand at ``times`` [T]: half-way, and as far outside at both ends, from 0 on."""
    if len(times) == 1:
        return np.array([0.0, 2.0 * times[0]])
    middle = (times[1:] + times[:-1]) / 2
    return np.concatenate([[max(0.0, 2 * times[0] - middle[0])], middle, [2 * times[-1] - middle[-1]]])
