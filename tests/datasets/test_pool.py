"""Pooling by the published formulas."""

from pathlib import Path

import numpy as np
import pytest

from prvr.datasets.pool import to_clips, to_frames


def test_the_golden_of_the_released_code(shared: Path) -> None:
    golden = np.load(shared / "golden" / "extract" / "timeseries_resample.npz")
    lengths = [int(name[2:]) for name in golden if name.startswith("in")]
    assert len(lengths) > 5
    for length in lengths:
        steps, times = golden[f"in{length}"], (np.arange(length) + 0.5) / 3
        for size in (32, 128):
            if f"avg{size}_{length}" in golden:
                clips = to_clips(steps, times, size)
                np.testing.assert_allclose(clips.values, golden[f"avg{size}_{length}"], atol=1e-6)
            if f"uni{size}_{length}" in golden:
                frames = to_frames(steps, times, size)
                np.testing.assert_allclose(frames.values, golden[f"uni{size}_{length}"], atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 31, 32, 33, 127, 128, 129, 300, 1000])
def test_rows_stand_for_the_seconds_that_they_were_pooled_from(steps: int) -> None:
    times = (np.arange(steps) + 0.5) / 3
    # A feature that is its own time: the mean of a bin is the middle of its span.
    rows = np.repeat(times[:, None], 2, axis=1)
    for pooled in (to_clips(rows, times), to_frames(rows, times)):
        np.testing.assert_allclose(pooled.values[:, 0], pooled.spans.mean(axis=1), atol=1e-4)
        assert pooled.spans[0, 0] == 0 and (pooled.spans[:, 1] > pooled.spans[:, 0]).all()
        assert pooled.spans.max() <= steps / 3 + 1e-4


def test_the_last_step_is_left_out_as_published() -> None:
    steps, times = np.arange(64, dtype=np.float64)[:, None], np.arange(64.0)
    assert to_clips(steps, times).values[-1, 0] == 62.0  # The mean of 62 and 63 would be 62.5.


def test_uneven_times_give_borders_half_way() -> None:
    pooled = to_frames(np.zeros((3, 1)), np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(pooled.spans, [[0.5, 1.5], [1.5, 3.0], [3.0, 5.0]])
