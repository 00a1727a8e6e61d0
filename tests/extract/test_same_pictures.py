"""The same pictures in another container, at another start, another rate, or turned in the file, are the same features."""

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from click.testing import Result

from prvr.datasets.store import FeatureStore
from prvr.extract.cli import main

type Invoke = Callable[..., Result]
type Extract = Callable[[Path], FeatureStore]
RATE, COUNT = 10, 40


def _pictures() -> list[np.ndarray]:
    """A bright square that walks over a slope."""
    down, across = np.mgrid[0:96, 0:128]
    found = []
    for number in range(COUNT):
        picture = np.stack([down * 2, across, 255 - across - down // 2], axis=2).astype(np.uint8)
        picture[20:50, 2 * number : 2 * number + 30] = [250, 40, 5 * number]
        found.append(picture)
    return found


def _encode(path: Path, pictures: list[np.ndarray], rate: int = RATE, start: int = 0, codec: str = "libx264") -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"crf": "2", "preset": "ultrafast"})
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, rate)
        if codec == "mpeg4":
            stream.bit_rate = 20_000_000
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = number + start * rate, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def _copy(source: Path, target: Path, shift: int = 0) -> Path:
    """The same packets in another container, ``shift`` seconds later."""
    with av.open(str(source)) as one, av.open(str(target), "w") as other:
        stream = one.streams.video[0]
        assert stream.time_base is not None
        copy = other.add_stream_from_template(stream)
        later = int(shift / stream.time_base)
        for packet in one.demux(stream):
            if packet.dts is not None and packet.pts is not None:
                packet.pts, packet.dts, packet.stream = packet.pts + later, packet.dts + later, copy
                other.mux(packet)
    return target


def _turned_back(path: Path) -> Path:
    """Tell players to turn the pictures of an MP4 by 90 degrees clockwise: its track header's matrix."""
    found = bytearray(path.read_bytes())
    place = found.index(b"tkhd") + 4 + 40
    found[place : place + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(found)
    return path


@pytest.fixture
def extract(invoke: Invoke, clip_folder: Path, tmp_path: Path) -> Extract:
    """A function that extracts a folder, at 3 pictures a second."""

    def run(folder: Path) -> FeatureStore:
        words = (folder, "--backbone", "clip", "--weights", clip_folder, "--out", tmp_path / "f", "--workers", 1)
        assert invoke(main, *words).exit_code in (0, 3)
        return FeatureStore.open(tmp_path / "f" / "clip.video.zarr")

    return run


def test_copies_of_packets_are_the_same_to_the_bit(extract: Extract, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    original = _encode(folder / "original.mp4", _pictures())
    for name, shift in (("a.mkv", 0), ("late.mkv", 7), ("late.mp4", 3), ("b.ts", 0), ("c.mov", 0)):
        _copy(original, folder / f"{name.replace('.', '-')}.{name.split('.')[1]}", shift)
    store = extract(folder)
    assert len(store) == 6 and len(store["original"]) == 12
    for id_ in store.ids:
        np.testing.assert_array_equal(store[id_], store["original"], err_msg=id_)
        np.testing.assert_array_equal(store.times(id_), store.times("original"), err_msg=id_)


def test_another_rate_and_a_turned_file_agree_at_the_same_times(extract: Extract, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    pictures = _pictures()
    _encode(folder / "original.mp4", pictures)
    _encode(folder / "doubled.mp4", [picture for picture in pictures for _ in range(2)], rate=2 * RATE)
    _encode(folder / "xvid.avi", pictures, codec="mpeg4")
    _turned_back(_encode(folder / "turned.mp4", [np.rot90(picture) for picture in pictures]))
    _encode(folder / "upright.mp4", [np.rot90(picture) for picture in pictures])
    store = extract(folder)
    same = {id_: _cosines(store[id_], store["original"]).min() for id_ in store.ids}
    # Encoded again, and chroma is coarser across than along: the pictures differ by 0.7 of 255 on average.
    assert all(same[id_] > 0.93 for id_ in ("doubled", "xvid", "turned")), same
    assert same["upright"] < 0.5, "the test would see a picture that is not turned"
    for id_ in store.ids:
        np.testing.assert_allclose(store.times(id_), store.times("original"))


def test_the_shared_videos_agree_where_they_hold_the_same_pictures(shared: Path, extract: Extract) -> None:
    store = extract(shared / "data" / "videos")
    # A stream copy to Matroska, whose times are rounded to milliseconds.
    np.testing.assert_array_equal(store["nasa_13013"], store["nasa_480x270_copy"])
    np.testing.assert_array_equal(store.times("nasa_13013"), store.times("nasa_480x270_copy"))
    # Encoded again: VP9, MPEG-2 with uneven steps, one keyframe alone.
    for copy in ("bbb_vp9", "bbb_single_keyframe", "bbb_mpeg2"):
        assert _cosines(store[copy], store["big_buck_bunny_small"]).min() > 0.95, copy
    # One to two of three frames left out: at most times the same frame is on the screen, at some an earlier one.
    assert np.median(_cosines(store["nasa_vfr"], store["nasa_13013"])) > 0.99


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of the rows that both have, once what all rows share is taken away: the random network's rows are alike."""
    rows = min(len(one), len(other))
    middle = other.mean(axis=0)
    one, other = one[:rows] - middle, other[:rows] - middle
    found: np.ndarray = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return found
