"""Shards: one sample a video, in WebDataset's layout (DESIGN §4). Writer and reader of a sample side by side.

``<key>.safetensors`` has ``frames [F, E]``, ``clips [32, E]``, ``frame_times [F, 2]``, ``clip_times [32, 2]`` (seconds),
``words [sum W, Ew]`` and ``word_counts [Q]``; ``<key>.json`` the split line, which has the true id. Values are pooled,
not normalised: the preset normalises.
"""

import json
import logging
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from prvr.datasets.index import Index, Member, Shard
from prvr.datasets.pool import to_clips, to_frames
from prvr.datasets.store import FeatureStore
from prvr.manifests.errors import ConfigurationError, CorruptData
from prvr.manifests.files import digest_of, sha256_of, written_aside
from prvr.manifests.progress import progress
from prvr.manifests.split import Split, Video

SHARD_BYTES = 256 << 20
_EPSILON = 1e-5
_log = logging.getLogger(__name__)

type Array = NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """One video: ``frames`` [F, E], ``clips`` [C, E], their spans [F, 2] and [C, 2] in seconds, and per query its
    ``words`` [W, Ew]."""

    video: Video
    frames: Array
    clips: Array
    frame_times: Array
    clip_times: Array
    words: tuple[Array, ...]

    def __post_init__(self) -> None:
        if len(self.words) != len(self.video.queries):
            raise CorruptData(
                f"{self.video.video_id}: word features of {len(self.words)} queries, the split has {len(self.video.queries)}"
            )


def encode(sample: Sample) -> tuple[bytes, bytes]:
    """The bytes of a sample's two files: tensors and line."""
    width = sample.words[0].shape[1] if sample.words else 0
    tensors: dict[str, NDArray[Any]] = {
        "frames": sample.frames,
        "clips": sample.clips,
        "frame_times": sample.frame_times,
        "clip_times": sample.clip_times,
        "words": np.concatenate(sample.words) if sample.words else np.zeros((0, width), np.float32),
        "word_counts": np.array([len(words) for words in sample.words], np.int64),
    }
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    line = {**sample.video.to_json(), "times": "seconds"}
    return safetensors.numpy.save(tensors), json.dumps(line, ensure_ascii=False).encode()


def decode(tensors: bytes, line: bytes) -> Sample:
    """Inverse of ``encode``.

    Raises:
        CorruptData: bytes that ``encode`` did not make.
    """
    try:
        arrays = safetensors.numpy.load(tensors)
        video = Video.from_json(json.loads(line))
        words = np.split(arrays["words"], np.cumsum(arrays["word_counts"])[:-1]) if video.queries else []
        frames, clips, frame_times, clip_times = (
            arrays[name] for name in ("frames", "clips", "frame_times", "clip_times")
        )
        return Sample(video, frames, clips, frame_times, clip_times, tuple(words))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"not a sample of these shards: {error}") from None


def key_of(video_id: str) -> str:
    """A WebDataset key: letters, digits, ``-`` and ``_`` stand for themselves, any other byte is ``%XX``.
    WebDataset cuts a key at its first dot, and a key with slashes is a path."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in video_id.encode())


def write_shards(
    folder: Path,
    split: Split,
    name: str,
    video_stores: Sequence[FeatureStore],
    text_store: FeatureStore,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Index:
    """Write the shards of one split, and their index last; nothing is written where they exist and are up to date.

    Raises:
        ConfigurationError: the text store is of another split's captions, or no video has features.
    """
    videos = split.videos[name]
    missing = tuple(video.video_id for video in videos if not all(video.video_id in store for store in video_stores))
    gone = set(missing)
    present = [video for video in videos if video.video_id not in gone]
    if not present:
        raise ConfigurationError(f"split {name!r}: none of its {len(missing)} videos is in the feature stores")
    _refuse_other_captions(present, name, text_store)
    stores = [*video_stores, text_store]
    ids = [video.video_id for video in present]
    inputs = digest_of(
        {
            "lines": [video.to_json() for video in present],
            "specs": [store.spec.identity() for store in stores],
            "sources": [[store.fingerprint(id_) for id_ in ids] for store in video_stores],
            "missing": missing,
            "shard_bytes": shard_bytes,
        }
    )
    path = Index.path(folder, name)
    if path.is_file():
        try:
            index = Index.read(folder, name)
            if index.inputs == inputs and index.split_digest == split.digest():
                _log.info("%s: shards are up to date", name)
                return index
        except CorruptData as error:
            _log.info("%s; writing the shards anew", error)
        # The old index must not stand beside new shards.
        path.unlink()
    samples = progress(
        (_sample(video, video_stores, text_store) for video in present), f"shards of {name}", len(present)
    )
    shards = tuple(_write_tars(folder, name, samples, shard_bytes))
    index = Index(
        dataset=split.dataset,
        split=name,
        split_digest=split.digest(),
        inputs=inputs,
        frame_width=sum(store.spec.dim for store in video_stores),
        word_width=text_store.spec.dim,
        video_features=tuple(asdict(store.spec) for store in video_stores),
        text_features=asdict(text_store.spec),
        missing=missing,
        shards=shards,
    )
    index.write(folder)
    written = {shard.name for shard in shards}
    for stale in folder.glob(f"{name}-*.tar"):
        if stale.name not in written:
            stale.unlink()
    return index


def _sample(video: Video, video_stores: Sequence[FeatureStore], text_store: FeatureStore) -> Sample:
    steps, times = _joined(video.video_id, video_stores)
    frames, clips = to_frames(steps, times), to_clips(steps, times)
    words = tuple(text_store[query.query_id].astype(np.float32) for query in video.queries)
    return Sample(video, frames.values, clips.values, frames.spans, clips.spans, words)


def _joined(video_id: str, stores: Sequence[FeatureStore]) -> tuple[Array, NDArray[np.float64]]:
    """One store's rows as they are; several stores' rows each L2-normalised and side by side, as TVR joins
    ResNet and I3D: x / (||x|| + 1e-5)."""
    times = stores[0].times(video_id)
    if len(stores) == 1:
        return stores[0][video_id].astype(np.float32), times
    parts = []
    for store in stores:
        if len(store.times(video_id)) != len(times) or not np.allclose(store.times(video_id), times, atol=1e-3):
            raise ConfigurationError(
                f"{video_id}: {store.path} and {stores[0].path} have rows at other times; extract both at one --fps"
            )
        rows = store[video_id].astype(np.float32)
        parts.append(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + _EPSILON))
    return np.concatenate(parts, axis=1), times


def _refuse_other_captions(videos: Iterable[Video], name: str, text_store: FeatureStore) -> None:
    for video in videos:
        for query in video.queries:
            if query.query_id not in text_store:
                raise ConfigurationError(
                    f"{text_store.path}: no words of query {query.query_id!r} of split {name!r}; extract this split's captions"
                )
            if text_store.fingerprint(query.query_id) != query.fingerprint():
                raise ConfigurationError(
                    f"{text_store.path}: query {query.query_id!r} had another text when its words were extracted; extract again"
                )


def _write_tars(folder: Path, name: str, samples: Iterable[Sample], shard_bytes: int) -> Iterable[Shard]:
    pending: list[tuple[Video, bytes, bytes]] = []
    size = number = 0
    for sample in samples:
        tensors, line = encode(sample)
        if pending and size + len(tensors) + len(line) > shard_bytes:
            yield _write_tar(folder / f"{name}-{number:06d}.tar", pending)
            pending, size, number = [], 0, number + 1
        pending.append((sample.video, tensors, line))
        size += len(tensors) + len(line)
    yield _write_tar(folder / f"{name}-{number:06d}.tar", pending)


def _write_tar(path: Path, samples: Sequence[tuple[Video, bytes, bytes]]) -> Shard:
    from webdataset import TarWriter

    with written_aside(path) as aside:
        with aside.open("wb") as file:
            # A fixed time makes equal samples equal bytes.
            writer = TarWriter(file, encoder=False, mtime=0)
            for video, tensors, line in samples:
                writer.write({"__key__": key_of(video.video_id), "safetensors": tensors, "json": line})
            writer.close()
        with tarfile.open(aside) as tar:
            places = {member.name: (member.offset_data, member.size) for member in tar}
        members = tuple(
            Member(
                video.video_id,
                len(video.queries),
                places[f"{key_of(video.video_id)}.safetensors"],
                places[f"{key_of(video.video_id)}.json"],
            )
            for video, _, _ in samples
        )
        return Shard(path.name, aside.stat().st_size, sha256_of(aside), members)
