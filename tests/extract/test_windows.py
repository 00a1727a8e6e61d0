"""Pictures to windows: which pictures a row of a video network is made of."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prvr.extract import recipes
from prvr.extract.windows import Window, Windows
from prvr.manifests.errors import ConfigurationError


def _cut(window: Window, count: int) -> list[list[int]]:
    """The numbers of the pictures in each window of a video of ``count``."""
    windows = Windows(window)
    found = [made for n in range(count) for made in windows.push(torch.tensor([n]), n / 10)]
    found += windows.finish()
    return [[int(picture) for picture in made.pictures] for made in found]


def test_windows_follow_each_other() -> None:
    assert _cut(Window(3, 3), 6) == [[0, 1, 2], [3, 4, 5]]
    assert _cut(Window(4, 2, tail="drop"), 8) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert _cut(Window(2, 5, tail="drop"), 12) == [[0, 1], [5, 6], [10, 11]]


@pytest.mark.parametrize(
    ("tail", "last"),
    [("hold", [[6, 7, 7, 7]]), ("tile", [[6, 7, 6, 7]]), ("back", [[4, 5, 6, 7]]), ("drop", [])],
)
def test_the_end_of_a_video(tail: str, last: list[list[int]]) -> None:
    window = Window(4, 3, tail=tail)  # type: ignore[arg-type]
    assert _cut(window, 8) == [[0, 1, 2, 3], [3, 4, 5, 6], *last]


@pytest.mark.parametrize("tail", ["hold", "tile", "back", "drop"])
@pytest.mark.parametrize("without_last", [False, True])
def test_a_short_video_gives_one_window(tail: str, without_last: bool) -> None:
    for count in (1, 2, 5):
        (only,) = _cut(Window(16, 16, tail=tail, without_last=without_last), count)  # type: ignore[arg-type]
        assert len(only) == 16 and set(only) == set(range(max(1, count - without_last)))


def test_the_middle_of_a_window_is_that_of_its_real_pictures() -> None:
    windows = Windows(Window(4, 4))
    made = [*(one for n in range(6) for one in windows.push(torch.tensor([n]), n / 10)), *windows.finish()]
    assert [one.seconds for one in made] == pytest.approx([0.15, 0.45])


def test_the_last_picture_may_be_left_out_as_released() -> None:
    assert _cut(Window(2, 2, tail="drop", without_last=True), 5) == [[0, 1], [2, 3]]
    assert _cut(Window(2, 2, tail="drop", without_last=True), 4) == [[0, 1]]


def test_few_pictures_are_held_however_long_the_video() -> None:
    windows = Windows(Window(16, 4))
    for n in range(500):
        list(windows.push(torch.tensor([n]), n))
        assert len(windows._held) <= 16 + 4


def test_tvr_windows_are_those_of_its_authors(shared: Path) -> None:
    golden = np.load(shared / "golden" / "extract" / "tvr_pooling.npz")
    window = recipes.load("tvr-i3d", {}).channels[0].window
    assert window is not None
    for count in (1, 7, 20, 45, 46, 67, 68, 100, 300, 915, 1000, 1350, 2737):
        assert _cut(window, count) == golden[f"n{count}_i3d_window_frame_index_0based"].tolist(), count


@pytest.mark.parametrize(("length", "stride"), [(0, 1), (1, 0)])
def test_sizes_are_positive(length: int, stride: int) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        Window(length, stride)


@pytest.mark.parametrize("starts", [(), (1, 0), (3,), (0, 0)])
def test_starts_rise_within_the_stride(starts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="rising pictures"):
        Window(2, 3, starts=starts)
