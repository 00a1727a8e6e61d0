"""Which frames of a video are looked at: by presentation time, never by index ÷ average rate."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prvr.manifests.errors import ConfigurationError

TOLERANCE = 0.9e-3
"""Seconds by which a frame may come after its time. Matroska rounds to milliseconds, so all times are rounded so before
they are compared: the same pictures give the same picks from any container. Not a whole number, so that no time ties."""


@dataclass(frozen=True)
class Sampling:
    """A grid of times: slot i is the picture on the screen at ``(i + 0.5) / fps`` seconds after the first frame, the middle
    of the interval that it stands for.

    Args:
        fps: slots a second; or ``native``, every frame once, at the time when it appears.
        keep, of: of each ``of`` slots only those in ``keep`` (counted from 0): TVR's uneven rates.

    Raises:
        ConfigurationError: a rate that is not positive, or ``keep`` that does not rise within ``of``.
    """

    fps: float | Literal["native"] = 3.0
    keep: tuple[int, ...] = (0,)
    of: int = 1

    def __post_init__(self) -> None:
        if self.fps != "native" and not self.fps > 0:
            raise ConfigurationError(f"fps {self.fps}: give a number above 0, or native")
        if not self.keep or list(self.keep) != sorted({*self.keep} & {*range(self.of)}):
            raise ConfigurationError(f"keep {list(self.keep)} of {self.of}: name rising slots from 0 to {self.of - 1}")

    @property
    def rate(self) -> float:
        """Rows a second; infinite for native frames."""
        return math.inf if self.fps == "native" else self.fps * len(self.keep) / self.of

    def time(self, row: int) -> float:
        """Seconds of one row of a grid; of native frames only the frame itself knows."""
        if self.fps == "native":
            return math.nan
        period, place = divmod(row, len(self.keep))
        return (period * self.of + self.keep[place] + 0.5) / self.fps


@dataclass(frozen=True)
class Pick[Frame]:
    """One picture to look at, and for each sampling the times (seconds) of its rows that show it: none, one, or several
    where it stands still."""

    frame: Frame
    seconds: tuple[tuple[float, ...], ...]


def picks[Frame](frames: Iterable[tuple[float, float, Frame]], samplings: Sequence[Sampling]) -> Iterator[Pick[Frame]]:
    """Walk once through ``(start, duration, frame)`` in order of presentation, and pick for all samplings together.

    Only the frame on the screen is held. A video shorter than a sampling's first time gives that sampling its last frame.
    Times count from the start of the first frame.
    """
    cursors = [_Cursor(sampling) for sampling in samplings]
    origin: float | None = None
    shown: tuple[float, float, Frame] | None = None
    for start, duration, frame in frames:
        start = _milliseconds(start)
        if origin is None:
            origin = start
        if shown is not None:
            yield from _due(shown[2], shown[0], start - origin - TOLERANCE, cursors)
        shown = (start - origin, duration, frame)
    if shown is None:
        return
    start, duration, frame = shown
    last = next(
        _due(frame, start, start + max(duration, TOLERANCE) - TOLERANCE, cursors), Pick(frame, ((),) * len(cursors))
    )
    seconds = tuple(
        times or ((start,) if not cursor.rows else ()) for times, cursor in zip(last.seconds, cursors, strict=True)
    )
    if any(seconds):
        yield Pick(frame, seconds)


class _Cursor:
    """Where one sampling stands."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.rows = 0

    def due(self, start: float, end: float) -> tuple[float, ...]:
        """Times of the rows that a frame shows which is on the screen from ``start`` to before ``end``."""
        first = self.rows
        if self.sampling.fps == "native":
            self.rows += 1
            return (start,)
        while self.sampling.time(self.rows) < end:
            self.rows += 1
        return tuple(self.sampling.time(row) for row in range(first, self.rows))


def _due[Frame](frame: Frame, start: float, end: float, cursors: Sequence[_Cursor]) -> Iterator[Pick[Frame]]:
    seconds = tuple(cursor.due(start, end) for cursor in cursors)
    if any(seconds):
        yield Pick(frame, seconds)


def _milliseconds(seconds: float) -> float:
    """Rounded as FFmpeg's muxers do it: halves upwards. ``round`` goes to the even one, and the float is seldom the half."""
    return math.floor(seconds * 1000 + 0.5 + 1e-6) / 1000
