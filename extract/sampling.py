"""Which frames of a video are looked at: by presentation time, never by index ÷ average rate."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prvr.manifests.errors import ConfigurationError

TOLERANCE = 0.9e-3
"""Seconds by which a frame may come after its time. Matroska rounds to milliseconds, so all times are rounded so before
they are compared: the same pictures give the same picks from any container. Not a whole number, so that no time ties."""


@dataclass(frozen=True)
class Sampling:
    """A grid of times: row k is the picture on the screen at ``(k + 0.5) / fps`` seconds after the first frame, the
    middle of the interval that the row stands for.

    Raises:
        ConfigurationError: a rate that is not positive.
    """

    fps: float = 3.0

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise ConfigurationError(f"fps {self.fps}: give a number above 0")

    def time(self, row: int) -> float:
        """Seconds of one row."""
        return (row + 0.5) / self.fps


@dataclass(frozen=True)
class Pick[Frame]:
    """One picture to look at, when it was on the screen (seconds), and for which of the samplings."""

    frame: Frame
    seconds: float
    wanted: tuple[bool, ...]


def picks[Frame](frames: Iterable[tuple[float, float, Frame]], samplings: Sequence[Sampling]) -> Iterator[Pick[Frame]]:
    """Walk once through ``(start, duration, frame)`` in order of presentation, and pick for all samplings together.

    Only the frame on the screen is held. A video shorter than a sampling's first time gives that sampling its last frame.
    Times count from the start of the first frame.
    """
    rows = [0] * len(samplings)
    origin: float | None = None
    shown: tuple[float, float, Frame] | None = None
    for start, duration, frame in frames:
        start = round(start, 3)
        if origin is None:
            origin = start
        if shown is not None:
            yield from _due(shown[2], start - origin - TOLERANCE, rows, samplings)
        shown = (start - origin, duration, frame)
    if shown is None:
        return
    start, duration, frame = shown
    yield from _due(frame, start + max(duration, TOLERANCE) - TOLERANCE, rows, samplings)
    if 0 in rows:
        yield Pick(frame, start, tuple(row == 0 for row in rows))


def _due[Frame](frame: Frame, end: float, rows: list[int], samplings: Sequence[Sampling]) -> Iterator[Pick[Frame]]:
    """The picks before ``end``, each time once; moves ``rows`` on."""
    while True:
        times = [sampling.time(row) for sampling, row in zip(samplings, rows, strict=True)]
        now = min(times)
        if now >= end:
            return
        wanted = tuple(time == now for time in times)
        for position, due in enumerate(wanted):
            rows[position] += due
        yield Pick(frame, now, wanted)
