"""Raw feature steps to the two inputs that the models of this field take, by the formulas of the released code.

Source: MS-SL (Dong et al., ACM MM 2022), ``average_to_fixed_length`` and ``uniform_feature_sampling`` of its released data
provider. Both cut T steps into bins at ``min(round(i * T / bins), T - 1)``, round half to even. The last cut is clamped to
T - 1 and is exclusive, so the last step is left out whenever the last bin holds another: as ``published``. ``corrected``
pooling ends the last bin at T.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prvr.datasets.times import edges

type Pooling = Literal["published", "corrected"]
CLIPS = 32
MAX_FRAMES = 128


@dataclass(frozen=True)
class Pooled:
    """Pooled rows ``values`` [N, E] float32 and the seconds that each stands for, ``spans`` [N, 2]."""

    values: NDArray[np.float32]
    spans: NDArray[np.float32]


def to_clips(
    steps: NDArray[np.floating], times: NDArray[np.float64], clips: int = CLIPS, pooling: Pooling = "published"
) -> Pooled:
    """Always ``clips`` rows; where there are fewer steps, steps repeat. ``steps`` [T, E], ``times`` [T] seconds."""
    return _pooled(steps, times, clips, pooling)


def to_frames(
    steps: NDArray[np.floating], times: NDArray[np.float64], limit: int = MAX_FRAMES, pooling: Pooling = "published"
) -> Pooled:
    """At most ``limit`` rows; the steps as they are where there are no more than that."""
    if len(steps) > limit:
        return _pooled(steps, times, limit, pooling)
    borders = edges(times)
    return Pooled(steps.astype(np.float32), np.stack([borders[:-1], borders[1:]], axis=1).astype(np.float32))


def _pooled(steps: NDArray[np.floating], times: NDArray[np.float64], bins: int, pooling: Pooling) -> Pooled:
    last = len(steps) - 1 if pooling == "published" else len(steps)
    cuts = np.minimum(np.round(np.arange(bins + 1) / bins * len(steps)).astype(np.int64), last)
    starts = np.minimum(cuts[:-1], len(steps) - 1)
    stops = np.maximum(cuts[1:], starts + 1)
    sums = np.concatenate([np.zeros((1, steps.shape[1])), np.cumsum(steps, axis=0, dtype=np.float64)])
    values = (sums[stops] - sums[starts]) / (stops - starts)[:, None]
    borders = edges(times)
    return Pooled(values.astype(np.float32), np.stack([borders[starts], borders[stops]], axis=1).astype(np.float32))
