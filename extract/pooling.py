"""From a network's rows to the rows that are stored: pooling over clips, normalising, joining."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prvr.manifests.errors import ConfigurationError

EPSILON = 1e-5
"""Added to a row's length before it is divided by it, as TVR's authors do."""

type Rows = NDArray[Any]


@dataclass(frozen=True)
class Pool:
    """Rows to clips of ``seconds``: clip k holds the rows from ``k * seconds`` to before ``(k + 1) * seconds``.

    Args:
        seconds: length of a clip.
        how: ``max`` or ``mean`` of its rows.
        order: ``released`` mixes the rows up as TVR's published script does, which reads its pictures grouped by their place
            in the second (all first ones, all second ones, …) and pools them as if they stood in order of time.

    Raises:
        ConfigurationError: a length that is not positive.
    """

    seconds: float
    how: Literal["max", "mean"] = "max"
    order: Literal["time", "released"] = "time"

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigurationError(f"clips of {self.seconds} s: give a length above 0")

    def __call__(self, rows: Rows, times: Rows, *, places: int = 1) -> tuple[Rows, Rows]:
        """``rows`` [T, E] at ``times`` [T] to clips [C, E] and their middles [C]. ``places``: rows sampled a period."""
        if self.order == "released":
            rows = rows[np.argsort(np.arange(len(rows)) % places, kind="stable")]
        clip = np.floor(times / self.seconds).astype(np.int64)
        starts = np.flatnonzero(np.diff(clip, prepend=-1))
        if self.how == "max":
            pooled = np.maximum.reduceat(rows, starts)
        else:
            pooled = np.add.reduceat(rows, starts) / np.diff(starts, append=len(rows))[:, None].astype(rows.dtype)
        return pooled, (clip[starts] + 0.5) * self.seconds


def normalised(rows: Rows) -> Rows:
    """Each row [E] of [T, E] divided by its Euclidean length (and a little: EPSILON)."""
    found: Rows = rows / (np.linalg.norm(rows, axis=-1, keepdims=True) + EPSILON)
    return found


def joined(parts: Sequence[tuple[Rows, Rows]]) -> tuple[Rows, Rows]:
    """Parts ([T_i, E_i], times [T_i]) side by side, [T, sum E_i]; T and the times are the first part's.

    Row i stands beside row i: a part with fewer rows is filled with zeros, one with more is cut, as TVR's authors do
    (their parts differ by one row at most, in the last clip).
    """
    length = len(parts[0][0])
    aligned = [np.pad(rows[:length], ((0, max(0, length - len(rows))), (0, 0))) for rows, _ in parts]
    return np.concatenate(aligned, axis=1), parts[0][1]
