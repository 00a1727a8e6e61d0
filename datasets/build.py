"""What ``prvr-build-split`` does: annotations to a split, and a split with feature stores to shards."""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prvr.datasets.captions import hash_percent
from prvr.datasets.corpora import Parsed
from prvr.datasets.foreign import some
from prvr.datasets.index import Index
from prvr.datasets.shards import PUBLISHED, Form, write_shards
from prvr.datasets.source import Source
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.files import sha256_of
from prvr.manifests.published import Published
from prvr.manifests.split import Split, Video, counts_of

HELD_OUT_PERCENT = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Available:
    """The videos that somebody has: a subset. ``name``: as the split and its results call it."""

    name: str
    ids: Collection[str]

    @classmethod
    def listed(cls, gallery: Parsed, where: str) -> "Available":
        """All videos of a gallery; ``where``: it was read from."""
        ids = {video.video_id for videos in gallery.videos.values() for video in videos}
        return cls(f"available in {where}", ids)

    def of(self, videos: Mapping[str, tuple[Video, ...]]) -> dict[str, tuple[Video, ...]]:
        """Those of the videos that are available, by split; none that has none."""
        found = {name: tuple(video for video in own if video.video_id in self.ids) for name, own in videos.items()}
        return {name: own for name, own in found.items() if own}


@dataclass(frozen=True)
class Built:
    """A split on disk and, per split name, the index of its shards (none without features)."""

    out: Path
    split: Split
    indexes: Mapping[str, Index]

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "dataset": self.split.dataset,
            "out": str(self.out),
            "splits": self.split.counts(),
            "repairs": dict(self.split.repairs),
            "subset": self.split.subset,
            "left_out": {name: dict(counts) for name, counts in self.split.left_out.items()},
            "overlap": {name: len(ids) for name, ids in self.split.overlap().items()},
            "missing": list(self.split.missing),
            "shards": {
                name: {
                    "files": len(index.shards),
                    "bytes": sum(shard.size for shard in index.shards),
                    "videos": len(index.video_ids),
                    "queries": index.queries,
                }
                for name, index in self.indexes.items()
            },
        }

    def text(self) -> str:
        """The same for a reader."""
        split, result = self.split, self.to_json()
        lines = [f"{split.dataset}{f', {split.subset}' if split.subset else ''} in {self.out}"]
        for name, counts in result["splits"].items():
            shards = result["shards"].get(name)
            sharded = f", {shards['videos']} videos in {shards['files']} shards" if shards else ""
            lines.append(f"  {name:5}  {counts['videos']} videos, {counts['queries']} queries{sharded}")
        lines += [
            f"  left out of {name}: {counts['videos']} videos, {counts['queries']} queries"
            for name, counts in split.left_out.items()
            if counts["videos"]
        ]
        lines += [f"  in train and in {name}: {count} videos" for name, count in result["overlap"].items()]
        lines += [f"  repaired: {rule}, {count} times" for rule, count in split.repairs.items()]
        return "\n".join(lines)


def make_split(
    dataset: str,
    parsed: Parsed,
    *,
    protocol: str = "published",
    subset: str = "",
    known: Published | None = None,
    available: Available | None = None,
) -> Split:
    """A split of what a corpus says.

    Raises:
        MissingInput: a corpus without videos, or of which none is available.
        ConfigurationError: a video or query that occurs twice in one split.
    """
    videos = {name: found for name, found in parsed.videos.items() if found}
    if not videos:
        raise MissingInput(f"{dataset}: no videos in {', '.join(map(str, parsed.sources)) or 'its annotations'}")
    left_out: dict[str, dict[str, int]] = {}
    if available:
        whole, videos = videos, available.of(videos)
        if not videos:
            raise MissingInput(f"{available.name}: none of the videos of {dataset} is there")
        before, after = counts_of(whole), counts_of({name: videos.get(name, ()) for name in whole})
        left_out = {name: {what: before[name][what] - after[name][what] for what in before[name]} for name in whole}
        subset = f"{subset}, {available.name}" if subset else available.name
    if protocol == "heldout":
        videos = _held_out(dataset, videos)
    return Split(
        dataset,
        protocol,
        videos,
        sources={path.name: sha256_of(path) for path in parsed.sources},
        repairs={rule: count for rule, count in parsed.repairs.items() if count},
        published=known.counts if known else {},
        subset=subset,
        left_out=left_out,
    )


def _held_out(dataset: str, videos: Mapping[str, tuple[Video, ...]]) -> dict[str, tuple[Video, ...]]:
    if "dev" in videos:
        raise ConfigurationError(f"{dataset} has a dev split of its own: use --protocol published")
    trained = videos.get("train", ())
    held = tuple(video for video in trained if hash_percent(video.video_id) < HELD_OUT_PERCENT)
    kept = tuple(video for video in trained if hash_percent(video.video_id) >= HELD_OUT_PERCENT)
    divided = {"train": kept, "dev": held, **{name: found for name, found in videos.items() if name != "train"}}
    return {name: found for name, found in divided.items() if found}


def build(split: Split, out: Path, source: Source | None = None, form: Form = PUBLISHED) -> Built:
    """Write the split, and with features its shards.

    Raises:
        ConfigurationError: features of none of the videos, or of other captions.
    """
    for name, ids in split.overlap().items():
        _log.warning("%d videos stand in train and in %s: %s", len(ids), name, some(ids))
    if source is None:
        split.write(out)
        return Built(out, split, {})
    lacking = _lacking(split, source)
    missing = tuple(dict.fromkeys(video_id for ids in lacking.values() for video_id in ids))
    split = replace(split, missing=missing)
    gone = set(missing)
    names = [name for name, found in split.videos.items() if any(video.video_id not in gone for video in found)]
    if not names:
        raise ConfigurationError(f"{', '.join(lacking)}: none of the {len(missing)} videos of {split.dataset} is there")
    for name in split.videos.keys() - set(names):
        _log.warning("split %s: none of its videos has features, so it gets no shards", name)
    for features, ids in lacking.items():
        _log.warning("%s lacks %d videos of the split, so the shards do: %s", features, len(ids), some(ids))
    split.write(out)
    return Built(out, split, {name: write_shards(out, split, name, source, form) for name in names})


def _lacking(split: Split, source: Source) -> dict[str, list[str]]:
    """Videos without features, by what lacks them."""
    lacking = defaultdict[str, list[str]](list)
    for video_id in dict.fromkeys(video.video_id for found in split.videos.values() for video in found):
        for features in source.lacking(video_id):
            lacking[features].append(video_id)
    return dict(lacking)
