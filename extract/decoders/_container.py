"""What a container promises about its pictures, read from its packets without decoding: the truth that indexed decoders
are held to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av

from prvr.manifests.errors import DecodeError


@dataclass(frozen=True)
class Promise:
    """A video file as its packets tell it.

    Args:
        format: the container's names, as FFmpeg has them.
        streams: how many video streams there are.
        codec, pixels: of the stream that FFmpeg holds for the best; size, times and the rest too.
        size: bytes of all pictures as RGB.
        times: start and duration (seconds) of every picture, in order of presentation.
        whole: every packet has a time, and none is to be thrown away (an edit list would).
        open_groups: a picture is shown before a keyframe that is stored before it.
    """

    format: frozenset[str]
    streams: int
    codec: str
    pixels: str
    size: int
    times: tuple[tuple[float, float], ...]
    whole: bool
    open_groups: bool


def promise(video: Path) -> Promise:
    """Read the packets of a file's video stream; DecodeError where there is none, or the file is broken."""
    av.logging.set_level(av.logging.PANIC)
    try:
        with av.open(str(video)) as container:
            stream = container.streams.best("video")
            if not isinstance(stream, av.VideoStream):
                raise DecodeError("no video stream in it")
            context = stream.codec_context
            packets = [packet for packet in container.demux(stream) if packet.size]
            base = stream.time_base
            shown = [
                (packet.pts, packet.duration or 0, packet.is_keyframe)
                for packet in packets
                if packet.pts is not None and not packet.is_discard
            ]
            if base is None or not shown:
                raise DecodeError("no frame in it")
            check_whole(container, stream, sum(not packet.is_corrupt for packet in packets))
            return Promise(
                format=frozenset(container.format.name.split(",")),
                streams=len(container.streams.video),
                codec=context.name,
                pixels=context.pix_fmt or "",
                size=len(packets) * context.width * context.height * 3,
                times=tuple(sorted((float(time * base), float(length * base)) for time, length, _ in shown)),
                whole=len(shown) == len(packets),
                open_groups=_open_groups([(time, key) for time, _, key in shown]),
            )
    except av.FFmpegError as error:
        raise DecodeError(f"{error.strerror or type(error).__name__}") from error


def check_whole(container: av.container.InputContainer, stream: av.VideoStream, packets: int) -> None:
    """DecodeError where an MP4's index promises more packets than there are: FFmpeg passes over in silence that a file ends
    between two of them. Other containers have no such index, or cannot be relied on for it."""
    if "mov" in container.format.name.split(",") and packets < stream.frames:
        raise DecodeError(f"cut off: {packets} of {stream.frames} frames are there")


def _open_groups(packets: Sequence[tuple[int, bool]]) -> bool:
    latest_key = packets[0][0]
    for time, key in packets:
        if time < latest_key:
            return True
        if key:
            latest_key = time
    return False
