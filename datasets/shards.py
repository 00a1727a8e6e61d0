"""Writing shards: tar files of samples, and their index last. Streaming reads them."""

import logging
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from prvr.datasets.index import Index, Member, Shard
from prvr.datasets.pool import MAX_FRAMES, Pooling, to_clips, to_frames
from prvr.datasets.sample import Sample, encode, key_of
from prvr.datasets.source import Raw, Source
from prvr.manifests.errors import ConfigurationError, CorruptData
from prvr.manifests.files import digest_of, sha256_of, written_aside
from prvr.manifests.progress import progress
from prvr.manifests.split import Split, Video

SHARD_BYTES = 256 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Form:
    """How shards are written.

    Args:
        pooling: ``published``, or ``corrected``: see ``pool``.
        keep_steps: raw steps too, where a video has more than are kept as frames.
        shard_bytes: a shard is closed before it grows beyond; one video may be larger.
    """

    pooling: Pooling = "published"
    keep_steps: bool = False
    shard_bytes: int = SHARD_BYTES


PUBLISHED = Form()


def write_shards(folder: Path, split: Split, name: str, source: Source, form: Form = PUBLISHED) -> Index:
    """Write the shards of one split, and their index last; nothing is written where they exist and are up to date.

    Raises:
        ConfigurationError: features of other captions than the split's, or of none of its videos.
    """
    videos = split.videos[name]
    missing = tuple(video.video_id for video in videos if source.lacking(video.video_id))
    gone = set(missing)
    present = [video for video in videos if video.video_id not in gone]
    if not present:
        raise ConfigurationError(f"split {name!r}: none of its {len(missing)} videos has features")
    source.check(present)
    text, subtitles = source.text_features, source.subtitle_features
    inputs = digest_of(
        {
            "lines": [video.to_json() for video in present],
            "specs": [spec.identity() for spec in (*source.video_features, text, subtitles) if spec],
            "sources": [source.fingerprint(video) for video in present],
            "missing": missing,
            "form": [form.pooling, form.keep_steps, form.shard_bytes],
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
        path.unlink(missing_ok=True)
    samples = progress(
        (make_sample(video, source.raw(video), form) for video in present), f"shards of {name}", len(present)
    )
    shards = tuple(_write_tars(folder, name, samples, form.shard_bytes))
    index = Index(
        dataset=split.dataset,
        subset=split.subset,
        split=name,
        split_digest=split.digest(),
        inputs=inputs,
        frame_width=sum(spec.dim for spec in source.video_features),
        word_width=text.dim if text else 0,
        video_features=tuple(asdict(spec) for spec in source.video_features),
        text_features=asdict(text) if text else None,
        subtitle_features=asdict(subtitles) if subtitles else None,
        pooling=form.pooling,
        joined=source.report(),
        missing=missing,
        missing_queries=sum(len(video.queries) for video in videos if video.video_id in gone),
        shards=shards,
    )
    index = index.write(folder)
    written = {shard.name for shard in shards}
    for stale in folder.glob(f"{name}-*.tar"):
        if stale.name not in written:
            stale.unlink(missing_ok=True)
    return index


def make_sample(video: Video, raw: Raw, form: Form) -> Sample:
    """Pool what was extracted of a video. Without times, steps divide the video evenly, from 0 to 1.

    Raises:
        CorruptData: rows that are not features [T, E], words that are not [W, E], or either not finite.
    """
    steps = raw.steps
    if steps.ndim != 2 or not len(steps) or not np.isfinite(steps).all():
        what = f"NaN or Inf in its rows {list(steps.shape)}" if steps.size else f"no rows: {list(steps.shape)}"
        raise CorruptData(f"{video.video_id}: {what if steps.ndim == 2 else f'{list(steps.shape)}, not [T, E]'}")
    for query, words in zip(video.queries, raw.words, strict=True):
        if words.ndim != 2 or not len(words) or not np.isfinite(words).all():
            raise CorruptData(f"query {query.query_id}: its words {list(words.shape)} are not finite rows [W, E]")
    times = raw.times if raw.times is not None else (np.arange(len(steps)) + 0.5) / len(steps)
    frames = to_frames(steps, times, pooling=form.pooling)
    clips = to_clips(steps, times, pooling=form.pooling)
    kept = form.keep_steps and len(steps) > MAX_FRAMES
    return Sample(
        video,
        frames.values,
        clips.values,
        frames.spans,
        clips.spans,
        tuple(np.asarray(words, np.float32) for words in raw.words),
        to_frames(raw.subtitles, times, pooling=form.pooling).values if raw.subtitles is not None else None,
        np.asarray(steps, np.float32) if kept else None,
        times if kept else None,
        "seconds" if raw.times is not None else "fractions",
        len(steps),
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
