"""Subtitles at the steps of a video: TVR's rule, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prvr.datasets.build import build
from prvr.datasets.source import StoreSource
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.datasets.stream import ShardReader
from prvr.datasets.subtitles import Subtitled
from prvr.manifests import subtitles
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.subtitles import Subtitle, fingerprint

LINES = (Subtitle("one two", 0.0, 1.5), Subtitle("three", 1.4, 3.1), Subtitle("four", 6.0, 6.5))
TOKENS = np.array([[1, 0], [0, 2], [3, -1], [-4, -4]], np.float32)
NUMBERS = np.array([0.0, 0.0, 1.0, 2.0])


@pytest.fixture
def store(tmp_path: Path, spec: Callable[..., FeatureSpec]) -> FeatureStore:
    made = FeatureStore.create(tmp_path / "s.zarr", spec("subtitles", 2))
    made.commit([Features("v", fingerprint(LINES), TOKENS, NUMBERS)])
    return made


def test_a_step_takes_the_maximum_of_the_lines_that_overlap_it(store: FeatureStore) -> None:
    # Steps of 1.5 s. The second line begins in the first and ends in the third; a line that ends at a border overlaps nothing
    # after it.
    rows = Subtitled(store, {"v": LINES}).rows("v", np.arange(0, 9.5, 1.5, dtype=np.float64))
    assert rows.tolist() == [[3, 2], [3, -1], [3, -1], [0, 0], [-4, -4], [0, 0]]


def test_a_video_in_which_nothing_is_said_is_zero(store: FeatureStore) -> None:
    assert not Subtitled(store, {}).rows("silent", np.arange(4.0)).any()


def test_other_subtitles_and_other_stores_are_refused(store: FeatureStore, world: Any) -> None:
    with pytest.raises(ConfigurationError, match="had other subtitles"):
        Subtitled(store, {"v": LINES[:2]})
    with pytest.raises(ConfigurationError, match="no subtitles of 'w'"):
        Subtitled(store, {"w": LINES})
    with pytest.raises(ConfigurationError, match="text features, where subtitles' belong"):
        Subtitled(FeatureStore.open(world.words), {})
    store.commit([Features("x", fingerprint(LINES[:1]), TOKENS, NUMBERS)])
    with pytest.raises(CorruptData, match="line 2, of 1"):
        Subtitled(store, {"x": LINES[:1]}).rows("x", np.arange(3.0))


def test_shards_carry_them(world: Any, tmp_path: Path, spec: Callable[..., FeatureSpec]) -> None:
    said = {video.video_id: LINES for video in world.split.videos["train"][:3]}
    made = FeatureStore.create(tmp_path / "s.zarr", spec("subtitles", 2))
    made.commit([Features(id_, fingerprint(lines), TOKENS, NUMBERS) for id_, lines in said.items()])
    subtitles.write(tmp_path / "data", said)
    source = StoreSource([world.videos], world.words, Subtitled.open(made.path, tmp_path / "data"))
    built = build(world.split, tmp_path / "data", source)
    assert (built.indexes["train"].subtitle_features or {})["dim"] == 2
    with ShardReader(tmp_path / "data", "train") as reader:
        first, last = reader[0], reader[11]
        assert first.subtitles is not None and first.subtitles.shape == (len(first.frames), 2)
        assert first.subtitles[0].tolist() == [1.0, 2.0] and last.subtitles is not None and not last.subtitles.any()


def test_the_file_goes_there_and_back(tmp_path: Path) -> None:
    said = {"v": LINES, "vidéo": (Subtitle("été", 0, 1),), "silent": ()}
    subtitles.write(tmp_path, said)
    assert subtitles.read(tmp_path) == said
    (tmp_path / "subtitles.jsonl").write_text('{"video_id": "v"}\n', encoding="utf-8")
    with pytest.raises(CorruptData, match=r"jsonl:1: "):
        subtitles.read(tmp_path)
    with pytest.raises(MissingInput, match="no subtitles there"):
        subtitles.read(tmp_path / "elsewhere")


@pytest.mark.parametrize(("text", "start", "end"), [("", 0, 1), ("x", -1, 1), ("x", 2, 1), ("x", float("nan"), 1)])
def test_what_is_no_subtitle(text: str, start: float, end: float) -> None:
    with pytest.raises(ConfigurationError, match="subtitle"):
        Subtitle(text, start, end)
