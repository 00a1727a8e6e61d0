"""One channel at work: pictures of many videos in, rows out, computed in batches of one fixed size.

Rows of several videos share a batch, and the last batch is filled up by repeating a row: a network that is given one shape
alone computes a row to the same bits whatever its neighbours are. So a row is the same however the sources were divided
among processes, and whatever was extracted before.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prvr.extract.backbones import VideoBackbone
from prvr.extract.decode import Rows
from prvr.extract.precision import pick_precision
from prvr.extract.recipes import Channel
from prvr.extract.windows import Frames, Windows
from prvr.manifests.errors import DecodeError

type Array = NDArray[np.float32]


@dataclass
class Track:
    """One video's way through a tower.

    Args:
        rows: computed ones, in order; those of an earlier run first (``resumed``), which are not computed again.
        times: of all rows begun (seconds).
        closed: no more pictures come.
        abandoned: the video failed; what is still computed of it is thrown away.
    """

    rows: list[Array] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    windows: Windows | None = None
    resumed: int = 0
    closed: bool = False
    abandoned: bool = False

    @property
    def complete(self) -> bool:
        """Whether every row is there. Rows of an earlier run may be there before their pictures have passed."""
        return self.closed and 0 < len(self.times) == len(self.rows)

    def features(self) -> tuple[Array, NDArray[np.float64]]:
        """Rows [T, E] and times [T]."""
        return np.stack(self.rows), np.array(self.times, np.float64)


@dataclass(frozen=True)
class _Waiting:
    track: Track
    pictures: tuple[Tensor, ...]


@dataclass(frozen=True)
class _Flying:
    """A batch whose rows are on their way from the GPU."""

    tracks: tuple[Track, ...]
    rows: Tensor
    landed: Callable[[], None]


class Tower:
    """A channel's network with its queue.

    Args:
        channel: says which pictures make a row.
        backbone: computes the rows. ``options``: it was made with.
        batch_size: rows in every batch.
        precision: that the network computes in; ``auto`` is what agrees with float32.
        compiled: send the network through ``torch.compile``.
    """

    def __init__(
        self,
        channel: Channel,
        backbone: VideoBackbone,
        *,
        options: Mapping[str, Any],
        batch_size: int,
        device: torch.device,
        precision: str = "auto",
        compiled: bool = False,
    ) -> None:
        self.channel = channel
        self.dim = backbone.dim
        self.sha256 = backbone.sha256
        self.options = options
        self.batch_size = batch_size
        self.device = device
        self._backbone = backbone
        self._dtype = pick_precision(precision, backbone, channel.window.length if channel.window else None, device)
        self._compute = torch.compile(backbone.__call__, dynamic=False) if compiled else backbone
        self._waiting: deque[_Waiting] = deque()
        self._flying: deque[_Flying] = deque()

    @property
    def precision(self) -> str:
        """Name of what the network computes in."""
        return str(self._dtype).removeprefix("torch.")

    def track(self, resumed: Array | None = None) -> Track:
        """Begin a video, with the first rows of it from an earlier run."""
        rows = [] if resumed is None else list(resumed)
        windows = Windows(self.channel.window) if self.channel.window else None
        return Track(rows=rows, resumed=len(rows), windows=windows)

    def push(self, track: Track, frames: Tensor, rows: Rows) -> Iterator[None]:
        """Take the next pictures of a video, ``frames`` [N, 3, H, W]; computes every batch that is full, and pauses after each.

        Raises:
            DecodeError: the backbone cannot use pictures of that size.
        """
        if not rows.frame:
            return
        # Each picture once, though several rows may show it.
        used = sorted(set(rows.frame))
        try:
            pictures = self._backbone.prepare(frames if len(used) == len(frames) else frames[used])
        except (RuntimeError, ValueError) as error:
            height, width = frames.shape[-2:]
            raise DecodeError(f"pictures {width} wide and {height} high cannot be prepared: {error}") from error
        place = {number: position for position, number in enumerate(used)}
        for number, seconds in zip(rows.frame, rows.seconds, strict=True):
            picture = pictures[place[number]]
            made = track.windows.push(picture, seconds) if track.windows else iter([Frames((picture,), seconds)])
            yield from self._enqueue(track, made)

    def finish(self, track: Track) -> Iterator[None]:
        """The video has ended; pauses as ``push`` does."""
        if track.windows:
            yield from self._enqueue(track, track.windows.finish())
            track.windows = None
        track.closed = True

    def drain(self) -> Iterator[None]:
        """Compute everything that waits; pauses as ``push`` does."""
        while self._waiting:
            self._run()
            yield
        self._land(0)

    def _enqueue(self, track: Track, made: Iterator[Frames]) -> Iterator[None]:
        for frames in made:
            track.times.append(frames.seconds)
            if len(track.times) > track.resumed:
                self._waiting.append(_Waiting(track, frames.pictures))
                if len(self._waiting) >= self.batch_size:
                    self._run()
                    yield

    def _run(self) -> None:
        items = [self._waiting.popleft() for _ in range(min(self.batch_size, len(self._waiting)))]
        # What has failed meanwhile is not worth a batch, but its place costs nothing.
        filled = items + items[-1:] * (self.batch_size - len(items))
        if self.channel.window:
            pictures = torch.stack([torch.stack(item.pictures) for item in filled])
        else:
            pictures = torch.stack([item.pictures[0] for item in filled])
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32),
        ):
            rows = self._compute(pictures)[: len(items)].float()
        self._flying.append(_sent_home(rows, tuple(item.track for item in items)))
        # On a GPU the next batch is begun before this one's rows are waited for.
        self._land(0 if self.device.type == "cpu" else 1)

    def _land(self, left: int) -> None:
        while len(self._flying) > left:
            flight = self._flying.popleft()
            flight.landed()
            for track, row in zip(flight.tracks, flight.rows.numpy(), strict=True):
                if not track.abandoned:
                    track.rows.append(row.copy())


def _sent_home(rows: Tensor, tracks: tuple[Track, ...]) -> _Flying:
    if rows.device.type == "cpu":
        return _Flying(tracks, rows, lambda: None)
    home = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    home.copy_(rows, non_blocking=True)
    landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    landed.record()
    return _Flying(tracks, home, landed.synchronize)
