"""Video to batches of frames: one interface over the decoders, and the choice between them."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prvr.extract import decoders
from prvr.extract.decoders import AUTO, Picture
from prvr.extract.sampling import Pick, Sampling
from prvr.manifests.errors import DecodeError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrameBatch:
    """N pictures of one video.

    Args:
        frames: [N, 3, H, W] uint8, RGB, upright.
        seconds: [N] float64, when each was on the screen, from the start of the first frame.
        wanted: [S, N] bool, which of the S samplings asked for each.
    """

    frames: Tensor
    seconds: Tensor
    wanted: Tensor

    def __post_init__(self) -> None:
        count = self.frames.shape[0]
        if self.frames.dtype != torch.uint8 or self.frames.ndim != 4 or self.frames.shape[1] != 3:
            raise ValueError(f"frames are uint8 [N, 3, H, W], not {self.frames.dtype} {tuple(self.frames.shape)}")
        if self.seconds.shape != (count,) or self.wanted.shape[1:] != (count,):
            raise ValueError(f"{count} frames, seconds {tuple(self.seconds.shape)}, wanted {tuple(self.wanted.shape)}")


def decode(
    video: Path, samplings: Sequence[Sampling], *, decoder: str = AUTO, batch_size: int = 32
) -> Iterator[FrameBatch]:
    """Decode a video once, for all samplings. Memory is flat in its length.

    ``auto`` takes decord where it is installed and believed, and PyAV elsewhere.

    Raises:
        DecodeError: the video cannot be decoded, or not exactly.
    """
    found = _auto(video, samplings) if decoder == AUTO else decoders.load(decoder).frames(video, samplings)
    for group in batched(found, batch_size):
        yield FrameBatch(
            torch.from_numpy(np.stack([pick.frame for pick in group])).permute(0, 3, 1, 2),
            torch.tensor([pick.seconds for pick in group], dtype=torch.float64),
            torch.tensor([pick.wanted for pick in group]).T,
        )


def _auto(video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]:
    if decoders.available("decord"):
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
