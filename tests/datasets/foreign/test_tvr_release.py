"""The features that TVR's authors release."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from prvr.datasets.foreign import hdf5, layout_of, tvr_release
from prvr.datasets.stream import ShardReader
from prvr.datasets.transfer_cli import export, import_
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.split import Query, Split, Video

type Invoke = Callable[..., Result]
FEATURE = "tvr_resnet152_rgb_max_i3d_rgb600_avg_cat_cl-1.5"
IDS = ["castle_s01e01_seg02_clip_00", "friends_s01e03_seg02_clip_19"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Two videos of 4 and 130 clips, a query each; two kinds of features."""
    root = tmp_path / "tvr_feature_release"
    rng = np.random.default_rng(0)
    rows = {id_: rng.standard_normal((n, 6)).astype(np.float32) for id_, n in zip(IDS, (4, 130), strict=True)}
    for feature in (FEATURE, "tvr_i3d_rgb600_avg_cl-1.5"):
        hdf5.write(tvr_release.place(root, feature), rows.items())
    words = {"90200": np.ones((3, 5), np.float32), "90201": np.zeros((1, 5), np.float32)}
    hdf5.write(tvr_release.words(root, FEATURE), words.items())
    videos = [Video(id_, 90.0, (Query(f"9020{n}", "a sentence"),)) for n, id_ in enumerate(IDS)]
    Split("tvr", "published", {"train": (videos[0],), "test": (videos[1],)}).write(tmp_path / "split")
    return root


def test_rows_are_clips_of_the_length_in_the_name(release: Path) -> None:
    places = tvr_release.places(release)
    assert list(places) == ["tvr_i3d_rgb600_avg_cl-1.5", FEATURE] and tvr_release.recognise(places[FEATURE])
    with tvr_release.read(places[FEATURE]) as contents:
        assert contents.seconds_a_row == 1.5 and [entry.id for entry in contents.entries] == IDS
    with tvr_release.read(tvr_release.words(release, FEATURE)) as contents:
        assert contents.seconds_a_row is None and [entry.id for entry in contents.entries] == ["90200", "90201"]
    renamed = places[FEATURE].rename(release / "video.h5")
    assert not tvr_release.recognise(renamed) and layout_of(renamed) is not None


def test_imported_with_tvrs_own_split_it_has_times(release: Path, invoke: Invoke, tmp_path: Path) -> None:
    words = (import_, "tvr-release", release, "--split", tmp_path / "split", "--out", tmp_path / "s")
    several = invoke(*words)
    assert several.exit_code == 2 and f"choose with --feature: tvr_i3d_rgb600_avg_cl-1.5, {FEATURE}" in several.stderr
    done = invoke(*words, "--feature", FEATURE)
    assert done.exit_code == 0, done.stderr
    with ShardReader(tmp_path / "s", "train") as reader:
        sample = reader[0]
    assert sample.times == "seconds" and sample.video.queries[0].query_id == "90200"
    np.testing.assert_allclose(sample.frame_times, [[0, 1.5], [1.5, 3], [3, 4.5], [4.5, 6]])
    assert [words.shape for words in sample.words] == [(3, 5)]
    assert reader.index.video_features[0]["recipe"] == f"tvr-release/{FEATURE}"
    with ShardReader(tmp_path / "s", "test") as reader:
        assert reader[0].frames.shape == (128, 6) and reader[0].length == 130


def test_without_a_split_it_says_what_is_missing(release: Path, invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke(import_, "tvr-release", release, "--feature", FEATURE, "--out", tmp_path / "s")
    assert refused.exit_code == 2 and "--split" in refused.stderr


def test_it_is_not_written(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="prvr-export hdf5"):
        tvr_release.write(tmp_path / "x.h5", [])
    refused = invoke(export, "tvr-release", world.data, "--out", tmp_path / "o")
    assert refused.exit_code == 2 and "read, not written" in refused.stderr and not list((tmp_path / "o").iterdir())
