"""torchcodec: exact on every file that it reads, 10-bit ones included. It needs FFmpeg's libraries on the system, and the
extra ``prvr[torchcodec]``."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from prvr.extract.decoders import Picture
from prvr.extract.decoders._container import promise
from prvr.extract.sampling import Pick, Sampling, picks
from prvr.manifests.errors import ConfigurationError, DecodeError

_BATCH = 16
_SAME = 2e-3
"""Seconds: Matroska rounds to milliseconds, and durations are rounded once more."""


def frames(video: Path, samplings: Sequence[Sampling], *, device: str = "cpu") -> Iterator[Pick[Picture]]:
    """Decode the picked frames, a few at a time, and compare the time of each with the container's."""
    check_libraries()
    from torchcodec.decoders import VideoDecoder

    shown = promise(video).times
    try:
        reader = VideoDecoder(str(video), seek_mode="exact", num_ffmpeg_threads=1, device=device)
    except (RuntimeError, ValueError) as error:
        raise DecodeError(f"torchcodec: {_first_line(error)}") from error
    if len(reader) != len(shown):
        raise DecodeError(f"torchcodec sees {len(reader)} frames, the container promises {len(shown)}")
    chosen = list(picks(((start, length, row) for row, (start, length) in enumerate(shown)), samplings))
    for first in range(0, len(chosen), _BATCH):
        group = chosen[first : first + _BATCH]
        try:
            batch = reader.get_frames_at([pick.frame for pick in group])
        except (RuntimeError, IndexError, ValueError) as error:
            raise DecodeError(f"torchcodec: {_first_line(error)}") from error
        promised = torch.tensor([shown[pick.frame][0] for pick in group], dtype=torch.float64)
        if (batch.pts_seconds - promised).abs().max() > _SAME:
            raise DecodeError("torchcodec gives frames of other times than the container's")
        for pick, picture in zip(group, batch.data, strict=True):
            yield Pick(picture, pick.seconds)


def check_libraries() -> None:
    """ConfigurationError where torchcodec finds no FFmpeg on this system; it needs one besides its own package."""
    import torchcodec

    if torchcodec.ffmpeg_major_version is None:
        raise ConfigurationError("torchcodec finds no FFmpeg libraries (4 to 9) on this system; use --decoder auto")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
