"""Where the samples of a split come from: feature stores here, the layouts of others in ``foreign``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from prvr.datasets.store import FeatureSpec, FeatureStore
from prvr.datasets.subtitles import Subtitled
from prvr.datasets.times import edges, on_clock
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.files import digest_of
from prvr.manifests.split import Video

SAME_TIME = 1e-3
"""Seconds: rows no further apart stand at one time."""
_EPSILON = 1e-5

type Array = NDArray[Any]


@dataclass(frozen=True)
class Raw:
    """One video as it was extracted, before pooling.

    Args:
        steps: [T, E]. ``times``: [T] seconds; None where nobody knows them.
        words: of each query, [W, Ew]; a sentence vector is W = 1.
        subtitles: [T, Es], or None.
    """

    steps: Array
    times: Array | None
    words: tuple[Array, ...]
    subtitles: Array | None = None


class Source(Protocol):
    """Features of the videos and queries of a split.

    Attributes:
        video_features: of each kind of features that is joined.
        text_features: likewise; None where there are no queries.
        subtitle_features: likewise; None without subtitles.
    """

    video_features: tuple[FeatureSpec, ...]
    text_features: FeatureSpec | None
    subtitle_features: FeatureSpec | None

    def lacking(self, video_id: str) -> tuple[str, ...]:
        """Names of the features that the video does not have; empty where it can be sharded."""
        ...

    def check(self, videos: Sequence[Video]) -> None:
        """Refuse queries that the text features were not made of: raises ConfigurationError."""
        ...

    def fingerprint(self, video: Video) -> str:
        """Changes when ``raw(video)`` does."""
        ...

    def raw(self, video: Video) -> Raw:
        """Read one video; raises CorruptData."""
        ...

    def report(self) -> Mapping[str, Any]:
        """What was done to join the features of the videos that were read: for the index."""
        ...


class StoreSource:
    """Feature stores: videos' (several are joined), the captions', and the subtitles'.

    Several are joined as TVR joins ResNet and I3D: rows each L2-normalised, x / (||x|| + 1e-5), and side by side. The first
    store's rows are the clock. Where another has rows at other times, each row of the clock takes the mean of those that lie
    in its span, and where none does, the nearest.

    Raises:
        ConfigurationError: a store of another stream than its place's.
    """

    def __init__(self, videos: Sequence[Path], text: Path | None = None, subtitles: Subtitled | None = None) -> None:
        self._videos = [_opened(path, "video") for path in videos]
        self._text = _opened(text, "text") if text else None
        self._subtitles = subtitles
        self.video_features = tuple(store.spec for store in self._videos)
        self.text_features = self._text.spec if self._text else None
        self.subtitle_features = subtitles.store.spec if subtitles else None
        self._away: dict[str, dict[str, float]] = {}

    def lacking(self, video_id: str) -> tuple[str, ...]:
        """See Source."""
        return tuple(str(store.path) for store in self._videos if video_id not in store)

    def check(self, videos: Sequence[Video]) -> None:
        """See Source."""
        if self._text is None:
            asked = next((video.video_id for video in videos if video.queries), None)
            if asked is not None:
                raise ConfigurationError(f"{asked} has queries: shards need --text-features too")
            return
        for query in (query for video in videos for query in video.queries):
            if query.query_id not in self._text:
                raise ConfigurationError(
                    f"{self._text.path}: no words of query {query.query_id!r}; extract this split's captions"
                )
            if self._text.fingerprint(query.query_id) != query.fingerprint():
                raise ConfigurationError(
                    f"{self._text.path}: query {query.query_id!r} had another text when its words were extracted; "
                    "extract again"
                )

    def fingerprint(self, video: Video) -> str:
        """See Source. The queries' texts stand in the split line, and ``check`` holds the words to them."""
        marks = [store.fingerprint(video.video_id) for store in self._videos]
        return digest_of([*marks, self._subtitles.fingerprint(video.video_id) if self._subtitles else ""])

    def raw(self, video: Video) -> Raw:
        """See Source."""
        first, *others = self._videos
        times = first.times(video.video_id)
        steps = first[video.video_id].astype(np.float32)
        if others:
            joined = [self._on_clock(video.video_id, store, times) for store in others]
            steps = np.concatenate([_normalised(one) for one in (steps, *joined)], axis=1)
        words = [self._text[query.query_id].astype(np.float32) for query in video.queries] if self._text else []
        said = self._subtitles.rows(video.video_id, edges(times)) if self._subtitles else None
        return Raw(steps, times, tuple(words), said)

    def report(self) -> Mapping[str, Any]:
        """See Source."""
        if len(self._videos) == 1:
            return {}
        clock, *others = (str(store.spec.recipe) for store in self._videos)
        aligned = {recipe: away for recipe in others if (away := self._away.get(recipe))}
        return {
            "normalised": "each",
            "clock": clock,
            "aligned": {
                recipe: {"videos": len(away), "seconds away at most": round(max(away.values()), 3)}
                for recipe, away in aligned.items()
            },
        }

    def _on_clock(self, video_id: str, store: FeatureStore, times: NDArray[np.float64]) -> Array:
        rows, own = store[video_id].astype(np.float32), store.times(video_id)
        if len(own) == len(times) and np.allclose(own, times, atol=SAME_TIME):
            return rows
        found, away = on_clock(rows, own, times)
        self._away.setdefault(store.spec.recipe, {})[video_id] = away
        return found


def _opened(path: Path, stream: str) -> FeatureStore:
    store = FeatureStore.open(path)
    if store.spec.stream != stream:
        raise ConfigurationError(f"{path}: {store.spec.stream} features, where {stream} features belong")
    return store


def _normalised(rows: Array) -> Array:
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + _EPSILON)
