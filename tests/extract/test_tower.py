"""A channel at work: rows do not depend on what shares their batch."""

import shutil

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from prvr.extract.backbones._network import Network
from prvr.extract.decode import Rows
from prvr.extract.framing import Framing
from prvr.extract.recipes import Channel
from prvr.extract.tower import Tower, Track
from prvr.extract.windows import Window
from prvr.manifests.errors import DecodeError

CPU = torch.device("cpu")


class _Mean(nn.Module):
    """Pictures or windows to the mean of a few convolutions; counts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.picture = nn.Conv2d(3, 16, 5)
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, pictures: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.shapes.append(tuple(pictures.shape))
        if pictures.ndim == 5:
            pictures = pictures.mean(2)
        rows: Tensor = self.picture(pictures).relu().mean((2, 3))
        return rows


def _tower(batch_size: int = 4, window: Window | None = None, shape: tuple[int, int] = (24, 32)) -> tuple[Tower, _Mean]:
    network = _Mean()
    backbone = Network(
        network,
        dim=16,
        sha256="0",
        framing=Framing(size=shape),
        mean=(0.5, 0.5, 0.5),
        deviation=(0.5, 0.5, 0.5),
        device=CPU,
    )
    return Tower(
        Channel("c", "c", "w", window=window), backbone, options={}, batch_size=batch_size, device=CPU
    ), network


def _video(seed: int, count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def _feed(tower: Tower, track: Track, video: Tensor, chunk: int) -> None:
    for first in range(0, len(video), chunk):
        frames = video[first : first + chunk]
        numbers = range(len(frames))
        list(tower.push(track, frames, Rows(tuple(numbers), tuple((first + n) / 10 for n in numbers))))
    list(tower.finish(track))


@pytest.mark.parametrize("window", [None, Window(5, 3), Window(3, 3, tail="drop")])
def test_neighbours_and_chunks_change_no_bit(window: Window | None) -> None:
    videos = [_video(seed, count) for seed, count in enumerate((7, 1, 12, 5))]
    alone = []
    for video in videos:
        tower, _ = _tower(window=window)
        track = tower.track()
        _feed(tower, track, video, 100)
        list(tower.drain())
        assert track.complete
        alone.append(track.features())
    tower, network = _tower(window=window)
    tracks = [tower.track() for _ in videos]
    for track, video in zip(tracks, videos, strict=True):
        _feed(tower, track, video, 3)
    list(tower.drain())
    for track, (rows, times) in zip(tracks, alone, strict=True):
        assert track.complete
        np.testing.assert_array_equal(track.features()[0], rows)
        np.testing.assert_array_equal(track.features()[1], times)
    assert {shape[0] for shape in network.shapes} == {4}, "one shape alone"
    total = sum(len(rows) for rows, _ in alone)
    assert len(network.shapes) == -(-total // 4), "batches cross the borders of videos"


def test_rows_of_an_earlier_run_are_not_computed_again() -> None:
    video = _video(0, 11)
    whole, _ = _tower()
    track = whole.track()
    _feed(whole, track, video, 4)
    list(whole.drain())
    rows, times = track.features()
    tower, network = _tower()
    again = tower.track(rows[:6])
    _feed(tower, again, video, 4)
    list(tower.drain())
    assert again.complete and len(network.shapes) == 2, "five rows are two batches of four"
    np.testing.assert_array_equal(again.features()[0], rows)
    np.testing.assert_array_equal(again.features()[1], times)


def test_what_failed_does_not_disturb_the_others() -> None:
    tower, _ = _tower()
    failed, good = tower.track(), tower.track()
    list(tower.push(failed, _video(0, 2), Rows((0, 1), (0.0, 0.1))))
    failed.abandoned = True
    _feed(tower, good, _video(1, 5), 5)
    list(tower.drain())
    alone, _ = _tower()
    track = alone.track()
    _feed(alone, track, _video(1, 5), 5)
    list(alone.drain())
    assert not failed.rows
    np.testing.assert_array_equal(good.features()[0], track.features()[0])


def test_a_still_picture_is_prepared_once() -> None:
    tower, _ = _tower()
    track = tower.track()
    list(tower.push(track, _video(0, 3), Rows((2, 2, 2, 2, 2), (0.0, 0.1, 0.2, 0.3, 0.4))))
    list(tower.finish(track))
    list(tower.drain())
    rows, _ = track.features()
    assert len(rows) == 5 and (rows == rows[0]).all()


def test_pictures_that_cannot_be_prepared_are_that_videos_failure() -> None:
    tower, _ = _tower(shape=(24, 32))
    with pytest.raises(DecodeError, match="0 wide"):
        list(tower.push(tower.track(), torch.zeros(1, 3, 8, 0, dtype=torch.uint8), Rows((0,), (0.0,))))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
# torch's own compiler and what it imports.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_network_gives_the_same_rows() -> None:
    plain, _ = _tower()
    compiled = Tower(plain.channel, plain._backbone, options={}, batch_size=4, device=CPU, compiled=True)
    found = []
    for tower in (plain, compiled):
        track = tower.track()
        _feed(tower, track, _video(0, 6), 6)
        list(tower.drain())
        found.append(track.features()[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
