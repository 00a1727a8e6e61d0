"""Video to batches of frames: one interface over the decoders, and the choice between them."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from prvr.extract import decoders
from prvr.extract.decoders import AUTO, Picture, _images
from prvr.extract.sampling import Pick, Sampling
from prvr.manifests.errors import DecodeError

_log = logging.getLogger(__name__)

SPARSE = 8.0
"""Pictures a second up to which ``auto`` looks at decord: where most frames are wanted PyAV is twice as quick."""
MOST_FRAMES, MOST_BYTES = 32, 32 << 20
"""Of one batch, whichever is reached first: 5 frames of 1080p, 32 of 480p."""


@dataclass(frozen=True)
class Rows:
    """The rows of one sampling that a batch's frames stand for: which frame, and when (seconds from the first frame)."""

    frame: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class FrameBatch:
    """N pictures of one video.

    Args:
        frames: [N, 3, H, W] uint8, RGB, upright.
        rows: for each sampling, its rows in order of time.
    """

    frames: Tensor
    rows: tuple[Rows, ...]

    def __post_init__(self) -> None:
        if self.frames.dtype != torch.uint8 or self.frames.ndim != 4 or self.frames.shape[1] != 3:
            raise ValueError(f"frames are uint8 [N, 3, H, W], not {self.frames.dtype} {tuple(self.frames.shape)}")


def decode(
    video: Path, samplings: Sequence[Sampling], *, decoder: str = AUTO, rate: float | None = None
) -> Iterator[FrameBatch]:
    """Decode a video once, for all samplings. Memory is flat in its length.

    Args:
        video: a file; or a folder of pictures, in order of their names, of which there are ``rate`` a second.
        decoder: ``auto`` takes decord where it is installed, believed, and the quickest: few pictures of a short video. It
            takes PyAV elsewhere.

    Raises:
        DecodeError: the video cannot be decoded, or not exactly.
    """
    if rate is not None:
        found = _images.frames(video, samplings, rate)
    elif decoder == AUTO:
        found = _auto(video, samplings)
    else:
        found = decoders.load(decoder).frames(video, samplings)
    for group in _groups(found):
        yield _batch(group, len(samplings))


def _groups(found: Iterable[Pick[Picture]]) -> Iterator[list[Pick[Picture]]]:
    """Runs of pictures of one size: a stream may change its own."""
    group: list[Pick[Picture]] = []
    for pick in found:
        if group and (
            pick.frame.shape != group[0].frame.shape
            or len(group) >= MOST_FRAMES
            or (len(group) + 1) * pick.frame.numel() > MOST_BYTES
        ):
            yield group
            group = []
        group.append(pick)
    if group:
        yield group


def _batch(group: Sequence[Pick[Picture]], samplings: int) -> FrameBatch:
    rows = []
    for position in range(samplings):
        pairs = [(number, second) for number, pick in enumerate(group) for second in pick.seconds[position]]
        rows.append(Rows(tuple(number for number, _ in pairs), tuple(second for _, second in pairs)))
    # Stacked as decoders write them, rows of pixels of three bytes: resizing is quickest so.
    frames = torch.stack([pick.frame.permute(1, 2, 0) for pick in group]).permute(0, 3, 1, 2)
    return FrameBatch(frames, tuple(rows))


def _auto(video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]:
    if decoders.available("decord") and all(sampling.rate <= SPARSE for sampling in samplings):
        started = False
        try:
            for pick in decoders.load("decord").frames(video, samplings):
                started = True
                yield pick
            return
        except DecodeError as error:
            if started:
                raise
            _log.debug("%s: %s; decoding with PyAV", video, error)
    yield from decoders.load("pyav").frames(video, samplings)
