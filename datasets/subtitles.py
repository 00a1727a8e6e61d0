"""Subtitles as a second text stream: features of what is said, at the steps of the video.

Source: TVR (Lei et al., ECCV 2020), utils/text_feature/convert_sub_feature_word_to_clip.py of its released code: a clip takes
the maximum over all tokens of the sentences that overlap it, and is zero where nothing is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prvr.datasets.store import FeatureStore
from prvr.manifests import subtitles
from prvr.manifests.errors import ConfigurationError, CorruptData
from prvr.manifests.subtitles import Subtitle, fingerprint


@dataclass(frozen=True)
class Subtitled:
    """Subtitles of videos and the store of their tokens: an id a video, a row a token, whose time is the number of its line.

    Raises:
        ConfigurationError: a store of other features, or of other subtitles.
    """

    store: FeatureStore
    lines: Mapping[str, tuple[Subtitle, ...]]

    def __post_init__(self) -> None:
        if self.store.spec.stream != "subtitles":
            raise ConfigurationError(
                f"{self.store.path}: {self.store.spec.stream} features, where subtitles' belong; "
                "prvr-extract --subtitles makes them"
            )
        for video_id, lines in self.lines.items():
            if video_id not in self.store:
                raise ConfigurationError(f"{self.store.path}: no subtitles of {video_id!r}; extract them")
            if self.store.fingerprint(video_id) != fingerprint(lines):
                raise ConfigurationError(
                    f"{self.store.path}: {video_id!r} had other subtitles when they were extracted; extract again"
                )

    @classmethod
    def open(cls, store: Path, split: Path) -> "Subtitled":
        """A store, and the subtitles in a split folder."""
        return cls(FeatureStore.open(store), subtitles.read(split))

    def fingerprint(self, video_id: str) -> str:
        """Changes when the rows, or the lines' times, do."""
        times = [(line.start, line.end) for line in self.lines.get(video_id, ())]
        return f"{self.store.fingerprint(video_id)}:{times}" if times else ""

    def rows(self, video_id: str, borders: NDArray[np.float64]) -> NDArray[Any]:
        """[T, Es] for the steps between ``borders`` [T + 1]: the maximum over the tokens of the lines that overlap a step."""
        steps = len(borders) - 1
        rows = np.zeros((steps, self.store.spec.dim), np.float32)
        lines = self.lines.get(video_id, ())
        if not lines:
            return rows
        tokens, numbers = self.store[video_id], self.store.times(video_id).astype(int)
        if numbers.max() >= len(lines):
            raise CorruptData(
                f"{self.store.path}: {video_id!r} has tokens of line {numbers.max()}, of {len(lines)} lines"
            )
        starts = np.array([line.start for line in lines])[numbers]
        ends = np.array([line.end for line in lines])[numbers]
        for step in range(steps):
            said = (starts < borders[step + 1]) & (ends > borders[step])
            if said.any():
                rows[step] = tokens[said].max(axis=0)
        return rows
