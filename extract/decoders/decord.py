"""decord: quick on short clips, but silently wrong on edit lists and MPEG-TS, and it reads ahead without bound.

So it takes only what it was measured to read exactly, and compares its index with the container's before it is believed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from prvr.extract.decoders import Picture
from prvr.extract.decoders._container import Promise, promise
from prvr.extract.sampling import Pick, Sampling, picks
from prvr.manifests.errors import DecodeError

CONTAINERS = frozenset({"mov", "mp4", "matroska", "webm"})
CODECS = ("h264", "hevc", "vp8", "vp9")
PIXELS = ("yuv420p", "yuvj420p")
MOST_BYTES = 256 << 20
"""Decoded size up to which a video is taken: the bound on what decord's reader may hold."""

_BATCH = 64
_SAME = 1e-3
"""Seconds: decord rounds its times to milliseconds."""


def frames(video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]:
    """Decode the picked frames; all are read before the first is given, so that a failure comes before any result."""
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    shown = _believable(promise(video)).times
    try:
        reader = decord.VideoReader(str(video), num_threads=1)
        spans = reader.get_frame_timestamp(range(len(reader)))
    except (decord.DECORDError, RuntimeError) as error:
        raise DecodeError(f"decord: {_last_line(error)}") from error
    promised = np.array([start for start, _ in shown]) - shown[0][0]
    starts = spans[:, 0] - spans[0, 0]
    if len(starts) != len(promised) or np.abs(starts - promised).max() > _SAME:
        raise DecodeError(f"decord sees {len(starts)} frames at other times than the container's {len(promised)}")
    # The container's times are exact where decord's are rounded.
    chosen = list(picks(((start, length, row) for row, (start, length) in enumerate(shown)), samplings))
    pictures: list[Picture] = []
    for first in range(0, len(chosen), _BATCH):
        rows = [pick.frame for pick in chosen[first : first + _BATCH]]
        try:
            pictures.extend(torch.from_numpy(reader.get_batch(rows).asnumpy()).permute(0, 3, 1, 2))
        except (decord.DECORDError, RuntimeError) as error:
            raise DecodeError(f"decord: {_last_line(error)}") from error
    for pick, picture in zip(chosen, pictures, strict=True):
        yield Pick(picture, pick.seconds)


def _believable(found: Promise) -> Promise:
    """The same; DecodeError where decord is not to be trusted."""
    if found.streams != 1:
        raise DecodeError(f"{found.streams} video streams")
    if not found.format & CONTAINERS:
        raise DecodeError(f"container {', '.join(sorted(found.format))} is not one that decord reads exactly")
    if found.codec not in CODECS or found.pixels not in PIXELS:
        raise DecodeError(f"{found.codec} in {found.pixels} is not what decord reads exactly")
    if found.size > MOST_BYTES:
        raise DecodeError(f"{found.size} bytes when decoded, more than decord is let hold")
    if not found.whole:
        raise DecodeError("an edit list, or packets without a time")
    if found.open_groups:
        raise DecodeError("pictures that reach across a keyframe, which decord misses when it seeks")
    return found


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
