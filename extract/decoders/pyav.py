"""PyAV: FFmpeg's own decoders inside the wheel. Exact on every container tried; flat in memory; here on every machine."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import torch

from prvr.extract.decoders import Picture
from prvr.extract.decoders._container import check_whole
from prvr.extract.sampling import Pick, Sampling, picks
from prvr.manifests.errors import DecodeError

THREADS = 1


def frames(video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]:
    """Decode from first to last frame, holding one; only the picked ones become RGB."""
    # What FFmpeg would print is in the error that we raise.
    av.logging.set_level(av.logging.PANIC)
    try:
        with av.open(str(video)) as container:
            stream = container.streams.best("video")
            if stream is None or not isinstance(stream, av.VideoStream):
                raise DecodeError("no video stream in it")
            stream.codec_context.thread_count = THREADS
            for pick in picks(_timed(container, stream), samplings):
                yield Pick(_upright(pick.frame), pick.seconds)
    except av.FFmpegError as error:
        raise DecodeError(f"{error.strerror or type(error).__name__}") from error


def _timed(
    container: av.container.InputContainer, stream: av.VideoStream
) -> Iterator[tuple[float, float, av.VideoFrame]]:
    count = packets = 0
    step = float(1 / stream.average_rate) if stream.average_rate else 0.0
    for packet in container.demux(stream):
        packets += packet.size > 0
        for frame in packet.decode():
            if frame.is_corrupt:
                raise DecodeError(f"frame {count} is corrupt")
            if frame.time is None or frame.time_base is None:
                raise DecodeError(f"frame {count} has no presentation time")
            yield frame.time, float(frame.duration * frame.time_base) if frame.duration else step, frame
            count += 1
    check_whole(container, stream, packets)
    if not count:
        raise DecodeError("no frame in it")


def _upright(frame: av.VideoFrame) -> Picture:
    picture = frame.to_ndarray(format="rgb24")
    return torch.from_numpy(np.ascontiguousarray(np.rot90(picture, round(frame.rotation / 90)))).permute(2, 0, 1)
