"""Rows to clips, normalised and joined: TVR's way, held to its authors' numbers."""

from pathlib import Path

import numpy as np
import pytest

from prvr.extract import recipes
from prvr.extract.pooling import Pool, joined, normalised
from prvr.manifests.errors import ConfigurationError

COUNTS = (7, 20, 45, 46, 67, 68, 100, 300, 915, 1000, 1350, 2737)
"""Pictures, at TVR's uneven 15 a second, of the golden videos."""


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[str, np.ndarray]:
    return dict(np.load(shared / "golden" / "extract" / "tvr_pooling.npz"))


@pytest.mark.parametrize("count", COUNTS)
def test_tvr_as_released(count: int, golden: dict[str, np.ndarray]) -> None:
    recipe = recipes.load("tvr-resnet152", {"tvr-resnet152": {"pool": {"order": "released"}}})
    channel = recipe.channels[0]
    assert channel.pool is not None
    # The golden's rows stand in the released order; ours come in order of time.
    released = golden[f"n{count}_resnet_frame_feat"]
    images = golden[f"n{count}_resnet_rows_img_index_1based"]
    rows = released[np.argsort(images)]
    times = np.array([channel.sampling.time(row) for row in range(len(rows))])
    clips, middles = channel.pool(rows, times, places=len(channel.sampling.keep))
    np.testing.assert_array_equal(clips, golden[f"n{count}_resnet_clip_max"])
    np.testing.assert_allclose(middles, 1.5 * (np.arange(len(clips)) + 0.5))
    i3d = golden[f"n{count}_i3d_clip_feat"]
    together, _ = joined([(normalised(clips), middles), (normalised(i3d), np.arange(len(i3d)) * 1.5)])
    np.testing.assert_allclose(together, golden[f"n{count}_cat"], atol=1e-7)


@pytest.mark.parametrize("count", COUNTS)
def test_tvr_in_order_of_time(count: int, golden: dict[str, np.ndarray]) -> None:
    channel = recipes.load("tvr-resnet152", {}).channels[0]
    assert channel.pool is not None and channel.pool.order == "time"
    images = np.sort(golden[f"n{count}_resnet_rows_img_index_1based"])
    rows = images[:, None].astype(np.float32)
    clips, _ = channel.pool(rows, np.array([channel.sampling.time(row) for row in range(len(rows))]), places=3)
    # Of each 30 frames the images are frames 1-5, 11-15, 21-25: the last image of each 1.5 s, which are 45 frames.
    frame = {n: (n - 1) // 15 * 30 + (n - 1) % 15 // 5 * 10 + (n - 1) % 5 + 1 for n in images}
    assert clips[:, 0].tolist() == [max(n for n in images if frame[n] <= 45 * (k + 1)) for k in range(len(clips))]


def test_a_mean_and_a_gap() -> None:
    rows, times = np.array([[1.0], [3.0], [5.0]], np.float32), np.array([0.1, 0.9, 2.5])
    clips, middles = Pool(1.0, how="mean")(rows, times)
    assert clips.tolist() == [[2.0], [5.0]] and middles.tolist() == [0.5, 2.5] and clips.dtype == np.float32


def test_rows_of_length_one_and_a_row_of_zeros() -> None:
    found = normalised(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 0], atol=1e-5)


def test_parts_of_unequal_length_are_filled_and_cut() -> None:
    first = (np.ones((2, 1), np.float32), np.array([0.5, 1.5]))
    short, long = ((np.full((n, 1), 2, np.float32), np.arange(n) * 1.0) for n in (1, 3))
    assert joined([first, short])[0].tolist() == [[1, 2], [1, 0]]
    rows, times = joined([first, long])
    assert rows.tolist() == [[1, 2], [1, 2]] and times.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_clip_has_a_length(seconds: float) -> None:
    with pytest.raises(ConfigurationError):
        Pool(seconds)
