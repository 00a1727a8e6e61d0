"""What ``prvr-export`` does: shards to a layout that other people's code reads."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prvr.datasets.foreign import Array, _captions, load, some
from prvr.datasets.index import Index
from prvr.datasets.sample import Sample
from prvr.datasets.stream import ShardReader
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.files import aside_of, sweep, sync
from prvr.manifests.progress import progress
from prvr.manifests.split import SPLITS, Video

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exported:
    """A collection on disk: how many videos and queries were written, and how many videos as pooled rows."""

    out: Path
    feature: str
    videos: int
    queries: int
    pooled: int

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "out": str(self.out),
            "feature": self.feature,
            "videos": self.videos,
            "queries": self.queries,
            "pooled": self.pooled,
        }


def export(
    layout: str, shards: Path, out: Path, *, collection: str | None, feature: str | None, pooled: bool, overwrite: bool
) -> Exported:
    """Write ``<out>/<collection>``, whole or not at all.

    Args:
        collection: its name; the dataset's where None.
        feature: what its features are called; as their recipe where None.
        pooled: where shards have no raw steps of a video, write its frames.
        overwrite: replace a collection that is there.

    Raises:
        MissingInput: no shards.
        ConfigurationError: something is there; raw steps are not; an id that the layout cannot carry.
    """
    writer = load(layout)
    indexes = {name: Index.read(shards, name) for name in SPLITS if Index.path(shards, name).is_file()}
    if not indexes:
        raise MissingInput(f"{shards}: no shards there; make them with prvr-build-split or prvr-import")
    first = next(iter(indexes.values()))
    target = out / (collection or first.dataset)
    feature = feature or "+".join(spec["recipe"].rpartition("/")[2] for spec in first.video_features)
    if target.exists() and not overwrite:
        raise ConfigurationError(f"{target}: is there; --overwrite replaces it")
    sweep(target)
    aside = aside_of(target)
    # The collection's name is part of its files' names, so it is written under that name.
    root = aside / target.name
    try:
        videos = _Videos(shards, list(indexes), pooled)
        writer.write(writer.place(root, feature), videos.steps())
        _captions.write(root, videos.lines)
        if first.text_features is not None:
            writer.write(writer.words(root, feature), videos.words())
        for path in [*aside.rglob("*"), aside]:
            sync(path)
        if target.exists():
            shutil.rmtree(target)
        root.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Exported(target, feature, videos.count, videos.queries, videos.pooled)


class _Videos:
    """The videos of all splits, each once; once their steps were read, the lines of each split, and once words were, how many."""

    def __init__(self, shards: Path, splits: list[str], pooled_allowed: bool) -> None:
        self.shards = shards
        self.splits = splits
        self.pooled_allowed = pooled_allowed
        self.lines: dict[str, list[Video]] = {}
        self.count = self.pooled = self.queries = 0

    def steps(self) -> Iterator[tuple[str, Array]]:
        """Each video's rows before pooling, [T, E]."""
        refused: list[str] = []
        seen: set[str] = set()
        for split, sample in self._samples():
            self.lines.setdefault(split, []).append(sample.video)
            if sample.video.video_id in seen:
                continue
            seen.add(sample.video.video_id)
            rows = sample.steps if sample.steps is not None else sample.frames
            if len(rows) != sample.length and not self.pooled_allowed:
                refused.append(sample.video.video_id)
            if not refused:
                self.count += 1
                self.pooled += len(rows) != sample.length
                yield sample.video.video_id, rows
        if refused:
            raise ConfigurationError(
                f"{self.shards}: {len(refused):,} videos had more steps than shards keep as frames: {some(refused)}; make the "
                "shards again with --keep-steps, or export what is there with --pooled"
            )

    def words(self) -> Iterator[tuple[str, Array]]:
        """Each query's rows [W, Ew], under the id that the caption files give it."""
        seen: set[str] = set()
        for _, sample in self._samples():
            for (query_id, _), rows in zip(_captions.named([sample.video]), sample.words, strict=True):
                if query_id not in seen:
                    seen.add(query_id)
                    self.queries += 1
                    yield query_id, rows

    def _samples(self) -> Iterator[tuple[str, Sample]]:
        for split in self.splits:
            with ShardReader(self.shards, split) as reader:
                for position in progress(range(len(reader)), f"export of {split}", len(reader)):
                    yield split, reader[position]
