"""What ``prvr-export`` does: shards to a layout that other people's code reads."""

import logging
import shutil
from collections.abc import Iterator, Mapping
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
    """Write the features, words and captions of ``<out>/<collection>``, whole or not at all; what else is there stays.

    Args:
        collection: its name; the dataset's where None.
        feature: what its features are called; as their recipe where None.
        pooled: where shards have no raw steps of a video, write its frames.
        overwrite: replace those that are there.

    Raises:
        MissingInput: no shards.
        ConfigurationError: one of them is there; raw steps are not; a name or id that the layout cannot carry.
    """
    writer = load(layout)
    indexes = {name: Index.read(shards, name) for name in SPLITS if Index.path(shards, name).is_file()}
    if not indexes:
        raise MissingInput(f"{shards}: no shards there; make them with prvr-build-split or prvr-import")
    first = next(iter(indexes.values()))
    feature = _plain(
        "--feature", feature or "+".join(spec["recipe"].rpartition("/")[2] for spec in first.video_features)
    )
    target = out / _plain("--collection", collection or first.dataset)
    paths = [writer.place(target, feature), *_captions.places(target).values()]
    if first.text_features is not None:
        paths.append(writer.words(target, feature))
    there = next((path for path in paths if path.exists()), None)
    if there and not overwrite:
        raise ConfigurationError(f"{there}: is there; --overwrite replaces it")
    sweep(target)
    aside = aside_of(target)
    # The collection's name is part of its files' names, so it is written under that name.
    root = aside / target.name
    try:
        videos = _Videos(shards, list(indexes), pooled)
        writer.write(writer.place(root, feature), videos.steps())
        names = _captions.named(video for own in videos.lines.values() for video in own)
        _captions.write(root, videos.lines, names)
        if first.text_features is not None:
            writer.write(writer.words(root, feature), videos.words(names))
        for path in [*aside.rglob("*"), aside]:
            sync(path)
        if target.exists():
            for path in paths:
                _replace(path, root / path.relative_to(target))
        else:
            root.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Exported(target, feature, videos.count, videos.queries, videos.pooled)


def _plain(option: str, name: str) -> str:
    """A name that is no path: it may come from the shards, which may come from strangers."""
    if "/" in name or "\\" in name or name.startswith(".") or name.split() != [name]:
        raise ConfigurationError(f"{name!r} cannot be the name of a folder there; choose another with {option}")
    return name


def _replace(path: Path, by: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Folders of features are often links to another disk, where a rename does not reach.
    shutil.move(by, path)
    sync(path.parent)


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

    def words(self, names: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, Array]]:
        """Each query's rows [W, Ew], under the id that the caption files give it."""
        seen: set[str] = set()
        for _, sample in self._samples():
            for query, rows in zip(sample.video.queries, sample.words, strict=True):
                name = names[sample.video.video_id, query.query_id]
                if name not in seen:
                    seen.add(name)
                    self.queries += 1
                    yield name, rows

    def _samples(self) -> Iterator[tuple[str, Sample]]:
        for split in self.splits:
            with ShardReader(self.shards, split) as reader:
                for position in progress(range(len(reader)), f"export of {split}", len(reader)):
                    yield split, reader[position]
