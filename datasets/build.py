"""What ``prvr-build-split`` does: annotations to a split, and a split with feature stores to shards."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prvr.datasets.captions import hash_percent
from prvr.datasets.corpora import Parsed
from prvr.datasets.index import Index
from prvr.datasets.shards import write_shards
from prvr.datasets.store import FeatureStore
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.files import sha256_of
from prvr.manifests.split import Split, Video

HELD_OUT_PERCENT = 5
_log = logging.getLogger(__name__)


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


def make_split(dataset: str, parsed: Parsed, *, protocol: str) -> Split:
    """A split of what a corpus says.

    Raises:
        MissingInput: a corpus without videos.
        ConfigurationError: a video or query that occurs twice in one split.
    """
    videos = dict(parsed.videos)
    if not any(videos.values()):
        raise MissingInput(f"{dataset}: no videos in {', '.join(map(str, parsed.sources)) or 'its annotations'}")
    if protocol == "heldout":
        if "dev" in videos:
            raise ConfigurationError(f"{dataset} has a dev split of its own: use --protocol published")
        held = [video for video in videos.get("train", ()) if hash_percent(video.video_id) < HELD_OUT_PERCENT]
        kept = [video for video in videos.get("train", ()) if hash_percent(video.video_id) >= HELD_OUT_PERCENT]
        videos = {"train": tuple(kept), "dev": tuple(held), **{k: v for k, v in videos.items() if k != "train"}}
    return Split(
        dataset,
        protocol,
        {name: found for name, found in videos.items() if found},
        sources={path.name: sha256_of(path) for path in parsed.sources},
        repairs=dict(parsed.repairs),
        published=parsed.published,
    )


def build(split: Split, out: Path, video_features: Sequence[Path], text_features: Path | None) -> Built:
    """Write the split, and with features its shards.

    Raises:
        ConfigurationError: video features without text features or the reverse; stores of another stream, or that hold
            none of the videos, or other captions.
    """
    if bool(video_features) != bool(text_features):
        raise ConfigurationError("shards need both --video-features and --text-features")
    if text_features is None:
        split.write(out)
        return Built(out, split, {})
    videos = [_opened(path, "video") for path in video_features]
    words = _opened(text_features, "text")
    missing = [video.video_id for found in split.videos.values() for video in found if not _present(video, videos)]
    split = replace(split, missing=tuple(missing))
    names = [name for name, found in split.videos.items() if any(_present(video, videos) for video in found)]
    if not names:
        stores = ", ".join(map(str, video_features))
        raise ConfigurationError(f"{stores}: none of the {len(missing)} videos of {split.dataset} is there")
    for name in split.videos.keys() - set(names):
        _log.warning("split %s: none of its videos has features, so it gets no shards", name)
    if missing:
        _log.warning(
            "%d videos of the split have no features, so the shards lack them: %s", len(missing), _some(missing)
        )
    split.write(out)
    return Built(out, split, {name: write_shards(out, split, name, videos, words) for name in names})


def _opened(path: Path, stream: str) -> FeatureStore:
    store = FeatureStore.open(path)
    if store.spec.stream != stream:
        raise ConfigurationError(f"{path}: {store.spec.stream} features, where {stream} features belong")
    return store


def _present(video: Video, stores: Sequence[FeatureStore]) -> bool:
    return all(video.video_id in store for store in stores)


def _some(names: Sequence[str], at_most: int = 5) -> str:
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
