"""A sample: one video of a shard, in WebDataset's layout (DESIGN §4). Its bytes and their reader side by side.

``<key>.safetensors`` has ``frames [F, E]``, ``clips [32, E]``, ``frame_times [F, 2]``, ``clip_times [32, 2]``,
``words [sum W, Ew]`` and ``word_counts [Q]``; where there are any, ``subtitles [F, Es]``; and on request, for a video of more
steps than frames are kept, its raw ``steps [T, E]`` and ``step_times [T]``. ``<key>.json`` is the split line, which has the
true id, and ``length``, T, and ``times``: ``seconds``, or ``fractions`` of the video where its source has no times. Values are
pooled, not normalised: the preset normalises.
"""

import json
from collections.abc import Buffer
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from prvr.manifests.errors import CorruptData
from prvr.manifests.split import Video

type Array = NDArray[np.float32]
_DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class Sample:
    """One video.

    Args:
        frames: [F, E]. ``clips``: [C, E]. ``frame_times``, ``clip_times``: their spans, [F, 2] and [C, 2].
        words: of each query, [W, Ew].
        subtitles: [F, Es], zero where nothing is said; None without subtitles.
        steps: [T, E] with ``step_times`` [T], before pooling; None where they were not asked for, or are the frames.
        times: what times are in, ``seconds`` or ``fractions``.
        length: T, how many steps the video had before pooling; 0 where nobody counted.
    """

    video: Video
    frames: Array
    clips: Array
    frame_times: Array
    clip_times: Array
    words: tuple[Array, ...]
    subtitles: Array | None = None
    steps: Array | None = None
    step_times: NDArray[np.float64] | None = None
    times: str = "seconds"
    length: int = 0

    def __post_init__(self) -> None:
        if len(self.words) != len(self.video.queries):
            raise CorruptData(
                f"{self.video.video_id}: word features of {len(self.words)} queries, the split has {len(self.video.queries)}"
            )


def encode(sample: Sample) -> tuple[bytes, bytes]:
    """The bytes of a sample's two files: tensors and line."""
    tensors: dict[str, NDArray[Any] | None] = {
        "frames": sample.frames,
        "clips": sample.clips,
        "frame_times": sample.frame_times,
        "clip_times": sample.clip_times,
        "words": np.concatenate(sample.words) if sample.words else np.zeros((0, 0), np.float32),
        "word_counts": np.array([len(words) for words in sample.words], np.int64),
        "subtitles": sample.subtitles,
        "steps": sample.steps,
        "step_times": sample.step_times,
    }
    found = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items() if tensor is not None}
    line = {**sample.video.to_json(), "times": sample.times, "length": sample.length}
    return safetensors.numpy.save(found), json.dumps(line, ensure_ascii=False).encode()


def decode(tensors: Buffer, line: Buffer) -> Sample:
    """Inverse of ``encode``. The arrays lie where the bytes lie: nothing is copied.

    Raises:
        CorruptData: bytes that ``encode`` did not make.
    """
    try:
        arrays = _views(memoryview(tensors))
        fields = json.loads(bytes(line))
        video = Video.from_json(fields)
        counts = arrays["word_counts"]
        if counts.sum() != len(arrays["words"]):
            raise ValueError(f"{len(arrays['words'])} words, where {counts.sum()} are counted")
        words = np.split(arrays["words"], np.cumsum(counts)[:-1]) if video.queries else []
        frames, clips, frame_times, clip_times = (
            arrays[name] for name in ("frames", "clips", "frame_times", "clip_times")
        )
        return Sample(
            video, frames, clips, frame_times, clip_times, tuple(words),
            arrays.get("subtitles"), arrays.get("steps"), arrays.get("step_times"), fields["times"], fields["length"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"not a sample of these shards: {error}") from None


def _views(data: memoryview) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, in place: the format's own loader copies every tensor twice, which costs more than
    all the rest of reading. Raises ValueError, KeyError, TypeError or AttributeError on bytes of another format."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    header.pop("__metadata__", None)
    arrays = {}
    end = 0
    for name, about in header.items():
        first, last = about["data_offsets"]
        array = np.frombuffer(data[start + first : start + last], _DTYPES[about["dtype"]]).reshape(about["shape"])
        if array.nbytes != last - first:
            raise ValueError(f"{name} has {array.nbytes} bytes of {last - first}")
        arrays[name] = array
        end = max(end, last)
    if start + end != len(data):
        raise ValueError(f"tensors of {start + end} bytes in a file of {len(data)}")
    return arrays


def key_of(video_id: str) -> str:
    """A WebDataset key: letters, digits, ``-`` and ``_`` stand for themselves, any other byte is ``%XX``.
    WebDataset cuts a key at its first dot, and a key with slashes is a path."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in video_id.encode())
