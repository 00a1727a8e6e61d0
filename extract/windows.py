"""Windows: the runs of consecutive sampled pictures that a video network reads at once."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prvr.manifests.errors import ConfigurationError

if TYPE_CHECKING:  # Loading torch takes seconds, and reading a recipe does not need it.
    from torch import Tensor


@dataclass(frozen=True)
class Window:
    """Pictures ``p * stride + s`` to ``p * stride + s + length`` for p = 0, 1, … and s in ``starts``; a row each.

    Args:
        length: pictures in a window.
        stride: pictures from one period to the next.
        starts: first pictures of the windows of a period, rising, below ``stride``.
        tail: what becomes of a window that the video ends in:
            ``hold`` repeats the last picture; ``tile`` repeats the last pictures there are, as TVR's authors do;
            ``back`` moves the window back so that it ends with the video, as VSLNet's author does; ``drop`` leaves it out.
            A video shorter than one window gives one, by ``hold`` (``tile`` where that is asked for).
        without_last: never use the last picture (VSLNet's extractor as released, off by one).

    Raises:
        ConfigurationError: sizes that make no window.
    """

    length: int
    stride: int
    starts: tuple[int, ...] = (0,)
    tail: Literal["hold", "tile", "back", "drop"] = "hold"
    without_last: bool = False

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1:
            raise ConfigurationError(f"window of {self.length} pictures every {self.stride}: both are at least 1")
        if not self.starts or list(self.starts) != sorted({*self.starts} & {*range(self.stride)}):
            raise ConfigurationError(f"starts {list(self.starts)}: name rising pictures from 0 to {self.stride - 1}")

    def start(self, row: int) -> int:
        """First picture of a row's window."""
        period, place = divmod(row, len(self.starts))
        return period * self.stride + self.starts[place]


@dataclass(frozen=True)
class Frames:
    """One window ready for the network: ``pictures`` (``length`` of [3, h, w]) and its middle (seconds)."""

    pictures: "tuple[Tensor, ...]"
    seconds: float


class Windows:
    """Cuts one video's pictures, as they come, into windows. Holds no more pictures than one window and one period."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._held: deque[tuple[Tensor, float]] = deque()
        self._first = 0  # Which picture of the video the first held one is.
        self._row = 0
        self._ahead: tuple[Tensor, float] | None = None

    def push(self, picture: "Tensor", seconds: float) -> Iterator[Frames]:
        """Take the next picture; gives the windows that it completes."""
        if self.window.without_last:
            # A picture counts once another has come after it.
            self._ahead, ready = (picture, seconds), self._ahead
            if ready is None:
                return
            picture, seconds = ready
        self._held.append((picture, seconds))
        end = self._first + len(self._held)
        while self.window.start(self._row) + self.window.length <= end:
            yield self._cut(self.window.start(self._row))
            self._row += 1
        # Enough for the next window, and for one that is moved back from the end.
        keep_from = min(self.window.start(self._row), end - self.window.length)
        while self._first < keep_from:
            self._held.popleft()
            self._first += 1

    def finish(self) -> Iterator[Frames]:
        """The windows that the video ends in."""
        if self._ahead is not None and not self._held:
            self._held.append(self._ahead)  # A single picture is better than none.
        end = self._first + len(self._held)
        if self.window.tail == "back":
            if self.window.start(self._row) < end:
                yield self._cut(max(0, end - self.window.length))
            return
        while self.window.start(self._row) < end and (self.window.tail != "drop" or not self._row):
            yield self._cut(self.window.start(self._row))
            self._row += 1

    def _cut(self, start: int) -> Frames:
        """The window from picture ``start``, filled where the video ends in it."""
        found = list(self._held)[start - self._first :][: self.window.length]
        pictures = [picture for picture, _ in found]
        if lacking := self.window.length - len(pictures):
            pictures += self._filling(pictures, lacking)
        return Frames(tuple(pictures[-self.window.length :]), (found[0][1] + found[-1][1]) / 2)

    def _filling(self, pictures: "list[Tensor]", lacking: int) -> "list[Tensor]":
        if self.window.tail != "tile":
            return pictures[-1:] * lacking
        if lacking <= len(pictures):
            return pictures[-lacking:]
        # More than is lacking: the window then begins somewhere in the repetition, and ends with the last picture.
        return pictures * -(-lacking // len(pictures))
