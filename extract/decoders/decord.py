"""decord: quick on short clips, but silently wrong on edit lists and MPEG-TS, and it reads ahead without bound.

So it takes only what it was measured to read exactly, and compares its index with the container's before it is believed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np

from prvr.extract.decoders import Picture
from prvr.extract.sampling import Pick, Sampling, picks
from prvr.manifests.errors import DecodeError

CONTAINERS = ("mov", "mp4", "matroska", "webm")
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
    shown = _container_times(video)
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
            pictures.extend(reader.get_batch(rows).asnumpy())
        except (decord.DECORDError, RuntimeError) as error:
            raise DecodeError(f"decord: {_last_line(error)}") from error
    for pick, picture in zip(chosen, pictures, strict=True):
        yield Pick(picture, pick.seconds, pick.wanted)


def _container_times(video: Path) -> list[tuple[float, float]]:
    """Start and duration of every frame in order of presentation, as the container promises them; DecodeError where
    decord is not to be trusted."""
    try:
        with av.open(str(video)) as container:
            streams = container.streams.video
            if len(streams) != 1:
                raise DecodeError(f"{len(streams)} video streams")
            stream = streams[0]
            context = stream.codec_context
            if not set(container.format.name.split(",")) & set(CONTAINERS):
                raise DecodeError(f"container {container.format.name} is not one that decord reads exactly")
            if context.name not in CODECS or context.pix_fmt not in PIXELS:
                raise DecodeError(f"{context.name} in {context.pix_fmt} is not what decord reads exactly")
            packets = [packet for packet in container.demux(stream) if packet.size]
            times = [packet.pts for packet in packets if packet.pts is not None and not packet.is_discard]
            keys = [packet.is_keyframe for packet in packets]
            base = stream.time_base
            size = len(packets) * context.width * context.height * 3
    except av.FFmpegError as error:
        raise DecodeError(f"{error.strerror or type(error).__name__}") from error
    if size > MOST_BYTES:
        raise DecodeError(f"{size} bytes when decoded, more than decord is let hold")
    if not packets or base is None or len(times) < len(packets):
        raise DecodeError("an edit list, or packets without a time")
    if _open_groups(times, keys):
        raise DecodeError("pictures that reach across a keyframe, which decord misses when it seeks")
    return sorted(
        (float(time * base), float((packet.duration or 0) * base)) for time, packet in zip(times, packets, strict=True)
    )


def _open_groups(times: Sequence[int], keys: Sequence[bool]) -> bool:
    """Whether a picture is shown before a keyframe that is stored before it. Measured: decord then gives wrong pictures."""
    latest_key = times[0]
    for time, key in zip(times, keys, strict=True):
        if time < latest_key:
            return True
        if key:
            latest_key = time
    return False


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
