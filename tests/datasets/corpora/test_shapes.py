"""The corpus of shapes: made the same each time, true in its captions, whole after a crash."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, permutations
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from prvr.datasets.corpora import Made, load, shapes
from prvr.datasets.rendering import COLOURS, REACH, SHAPES, TEXTURES, Moment, Scene, Thing, still
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput

SMALL = shapes.Options(train=3, test=2, size=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes")
    shapes.prepare(path, SMALL)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def decoded(folder: Path, scene: Scene) -> Iterator[tuple[float, NDArray[np.int64]]]:
    with av.open(str(folder / "videos" / f"{scene.video_id}.mp4")) as container:
        for frame in container.decode(video=0):
            assert frame.time is not None
            yield frame.time, frame.to_ndarray(format="rgb24").astype(np.int64)


def of_colour(picture: NDArray[np.int64], colour: str) -> NDArray[np.bool_]:
    """Which pixels have that hue, and strongly; [H, W]."""
    chroma = picture - picture.mean(axis=-1, keepdims=True)
    named = np.array(COLOURS[colour]) - np.mean(COLOURS[colour])
    along: NDArray[np.float64] = chroma @ named / np.linalg.norm(named)
    return (along > 45) & (along > 0.93 * np.linalg.norm(chroma, axis=-1))


def test_is_a_corpus_that_is_made() -> None:
    assert isinstance(load("shapes"), Made)


def test_the_same_options_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    shapes.prepare(tmp_path, SMALL)
    assert contents(tmp_path) == contents(folder)
    assert len(contents(folder)) == 5 + 2


def test_processes_give_the_same_bytes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "SCENES_A_WORKER", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    shapes.prepare(tmp_path, SMALL)
    assert contents(tmp_path) == contents(folder)


def test_another_seed_gives_another_corpus() -> None:
    one, other = (shapes.draw(shapes.Options(seed=seed, train=2, test=2)) for seed in (0, 1))
    assert [scene.moments for scene in one] != [scene.moments for scene in other]


def test_files_are_as_described(folder: Path) -> None:
    for scene in shapes.scenes_of(folder):
        with av.open(str(folder / "videos" / f"{scene.video_id}.mp4")) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 64, 64)
            assert stream.average_rate == Fraction(scene.rate)
            assert sum(1 for _ in container.decode(video=0)) == scene.frames
            assert container.duration == pytest.approx(scene.duration * av.time_base, rel=1e-3)


def test_lengths_moments_and_rates_are_in_range() -> None:
    scenes = shapes.draw(shapes.Options(train=150, test=50))
    for scene in scenes:
        assert 8 <= scene.duration <= 15
        times = [0.0, *(time for moment in scene.moments for time in (moment.start, moment.end)), scene.duration]
        assert times == sorted(times)
        assert all(moment.end - moment.start > 1.5 for moment in scene.moments)
    assert {len(scene.moments) for scene in scenes} == {3, 4, 5}
    assert {scene.rate for scene in scenes} == set(shapes.RATES)
    actions = {thing.action for scene in scenes for moment in scene.moments for thing in moment.things}
    assert actions == {*shapes.ACTIONS, "collides"}


NOUN = re.compile(
    rf"an? (?P<size>{'|'.join(REACH)})? ?(?P<colour>{'|'.join(COLOURS)}) ?(?P<texture>{'|'.join(TEXTURES)})? "
    rf"(?P<shape>{'|'.join(SHAPES)}) ?(?P<action>.*)"
)


def read(caption: str) -> list[dict[str, str]]:
    """What a caption says of each of its things, read from the English alone."""
    parts = caption.split(" while ")
    if " collides with " in caption:
        parts = [f"{noun} collides" for noun in caption.split(" collides with ")]
    matches = [NOUN.fullmatch(part) for part in parts]
    assert all(matches), caption
    return [{key: value for key, value in match.groupdict().items() if value} for match in matches if match]


def is_true(said: list[dict[str, str]], moment: Moment) -> bool:
    """Whether each thing that is spoken of is one of the moment's, no two the same."""
    return any(
        all(claim.items() <= vars(thing).items() for claim, thing in zip(said, things, strict=True))
        for things in permutations(moment.things, len(said))
    )


@pytest.mark.parametrize("options", [shapes.Options(train=2, test=0), shapes.Options(seed=1, train=90, dev=9, test=30)])
def test_a_caption_is_true_of_its_moment_and_of_one_video_alone(options: shapes.Options) -> None:
    scenes = shapes.draw(options)
    lengths = set()
    for scene in scenes:
        for moment in scene.moments:
            said = read(moment.caption)
            lengths.add((len(said), sum(map(len, said))))
            assert is_true(said, moment)
            assert {s.video_id for s in scenes if any(is_true(said, m) for m in s.moments)} == {scene.video_id}
    assert len(lengths) > 1  # some captions leave something out


def look(thing: Thing) -> tuple[str, str, str, str]:
    return thing.size, thing.colour, thing.texture, thing.shape


@pytest.mark.parametrize("options", [shapes.Options(train=2, test=2), shapes.Options(seed=1, train=60, dev=9, test=40)])
def test_each_moment_shares_a_shape_with_another_video_of_its_split(options: shapes.Options) -> None:
    scenes = shapes.draw(options)
    for scene in scenes:
        others = {
            look(thing)
            for other in scenes
            if other.split == scene.split and other.video_id != scene.video_id
            for moment in other.moments
            for thing in moment.things
        }
        for moment in scene.moments:
            assert any(look(thing) in others for thing in moment.things)


def test_named_colours_are_seen_in_the_moment_and_not_before(folder: Path) -> None:
    for scene in shapes.scenes_of(folder):
        frames = list(decoded(folder, scene))
        gaps = [0.0, *(moment.end for moment in scene.moments)]
        for moment, gap in zip(scene.moments, gaps, strict=False):
            middle = (moment.start + moment.end) / 2
            shown = min(frames, key=lambda frame: abs(frame[0] - middle))[1]
            before = [picture for seconds, picture in frames if gap <= seconds < moment.start]
            for claim in read(moment.caption):
                assert of_colour(shown, claim["colour"]).sum() > 10, (scene.video_id, moment.caption)
                assert not any(of_colour(picture, claim["colour"]).any() for picture in before)


def touched(thing: Thing, scene: Scene, part: float) -> set[str]:
    """The walls that the thing reaches in the picture."""
    seen = of_colour(still(scene.background, [thing], part, 64).astype(np.int64), thing.colour)
    edges = {"left": seen[:, :2], "right": seen[:, -2:], "top": seen[:2], "bottom": seen[-2:]}
    return {wall for wall, edge in edges.items() if edge.any()}


@pytest.mark.parametrize("wall", shapes.WALLS)
def test_what_bounces_off_a_wall_touches_that_wall_alone(wall: str) -> None:
    bounced = [
        [touched(thing, scene, part) for part in (0.0, 0.5, 1.0)]
        for scene in shapes.draw(shapes.Options(train=60, test=0))
        for moment in scene.moments
        for thing in moment.things
        if thing.action == f"bounces off the {wall} wall" and thing.texture == "plain"
    ]
    assert bounced
    assert all(walls == [set(), {wall}, set()] for walls in bounced)


def test_what_appears_is_not_there_before_and_what_crosses_changes_sides() -> None:
    seen = set()
    for scene in shapes.draw(shapes.Options(train=30, test=0)):
        for thing in (thing for moment in scene.moments for thing in moment.things):
            first, last = thing.at(0.0), thing.at(1.0)
            assert last is not None
            verb = thing.action.split()[0]
            seen.add(verb)
            if verb == "appears":
                assert first is None
            if thing.action == "crosses from left to right":
                assert first is not None and first[0] < 0.4 and last[0] > 0.6
    assert seen == {"appears", "bounces", "crosses", "collides"}


def test_only_what_collides_meets() -> None:
    for scene in shapes.draw(shapes.Options(train=30, test=0)):
        for one, other in (moment.things for moment in scene.moments):
            gaps = []
            for part in np.linspace(0, 1, 41):
                a, b = one.at(part), other.at(part)
                if a and b:
                    gaps.append(max(abs(a[0] - b[0]), abs(a[1] - b[1])) - REACH[one.size] - REACH[other.size])
            assert (min(gaps) <= 0) == (one.action == "collides")
            assert gaps[0] > 0


def test_every_look_is_a_picture_of_its_own() -> None:
    background = shapes.draw(SMALL)[0].background
    path = ((0.0, 0.5, 0.5),)
    looks = [(s, "red", t, f) for s in REACH for t in TEXTURES for f in SHAPES]
    pictures = [still(background, [Thing(*one, "", path)], 0.5, 64).astype(np.int64) for one in looks]
    differing = [(abs(a - b).max(axis=-1) > 60).sum() for i, a in enumerate(pictures) for b in pictures[:i]]
    assert min(differing) > 10


def test_parse_gives_the_videos_of_each_split(folder: Path) -> None:
    parsed = shapes.parse(folder, SMALL)
    assert {name: len(videos) for name, videos in parsed.videos.items()} == {"train": 3, "test": 2}
    video, scene = parsed.videos["test"][0], shapes.scenes_of(folder)[3]
    assert (video.video_id, video.duration) == (scene.video_id, scene.duration)
    assert [query.text for query in video.queries] == [moment.caption for moment in scene.moments]
    assert video.queries[2].query_id == f"{video.video_id}#enc#2"
    assert (video.queries[1].start, video.queries[1].end) == (scene.moments[1].start, scene.moments[1].end)
    assert parsed.sources == (folder / "moments.jsonl",)


def test_what_is_missing_is_rendered_and_the_rest_is_kept(folder: Path, tmp_path: Path) -> None:
    shapes.prepare(tmp_path, SMALL)
    lost, *kept = sorted((tmp_path / "videos").iterdir())
    (tmp_path / "videos" / f".{lost.name}.1-0.tmp").write_bytes(lost.read_bytes()[:100])  # as a killed writer leaves it
    lost.unlink()
    (tmp_path / "moments.jsonl").unlink()
    before = {path: path.stat().st_mtime_ns for path in kept}
    shapes.prepare(tmp_path, SMALL)
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    assert {k: v for k, v in contents(tmp_path).items() if not k.endswith(".tmp")} == contents(folder)


def test_a_killed_run_continues(tmp_path: Path) -> None:
    options = shapes.Options(train=200, test=0, size=32)
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\nfrom prvr.datasets.corpora import shapes\n"
        f"if __name__ == '__main__':\n    shapes.prepare(Path({str(tmp_path / 'made')!r}), shapes.{options!r})\n"
    )
    videos = tmp_path / "made" / "videos"
    process = subprocess.Popen([sys.executable, str(script)])
    while process.poll() is None and len(list(videos.glob("*.mp4"))) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)
    left = sorted(videos.glob("*.mp4"))
    assert 5 <= len(left) < 200
    assert not (tmp_path / "made" / "moments.jsonl").exists()
    for path in left:
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) > 0
    time.sleep(1)
    assert sorted(videos.glob("*.mp4")) == left  # its workers ended with it


def test_other_options_are_refused(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(ConfigurationError, match="another folder"):
        shapes.prepare(folder, shapes.Options(seed=1, train=3, test=2, size=64))
    assert contents(folder) == before


@pytest.mark.parametrize("values", [{"train": 1}, {"test": -1}, {"train": 0, "test": 0}, {"size": 65}, {"size": 16}])
def test_options_that_make_no_corpus_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="shapes"):
        shapes.Options(**values)


def test_absent_and_foreign_annotations(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="prvr-build-split shapes"):
        shapes.parse(tmp_path, SMALL)
    (tmp_path / "moments.jsonl").write_text(json.dumps({"video_id": "a"}) + "\n")
    with pytest.raises(CorruptData, match="not scenes"):
        shapes.parse(tmp_path, SMALL)


def test_stills_take_every_moment_of_the_split_once_a_pass(folder: Path) -> None:
    captions = [moment.caption for s in shapes.scenes_of(folder) if s.split == "train" for moment in s.moments]
    examples = list(islice(shapes.stills(folder, "train", seed=0), len(captions)))
    assert sorted(caption for _, caption in examples) == sorted(captions)
    for picture, caption in examples:
        assert picture.shape == (64, 64, 3) and picture.dtype == np.uint8
        for claim in read(caption):
            assert of_colour(picture.astype(np.int64), claim["colour"]).sum() > 10
    again = next(shapes.stills(folder, "train", seed=0))
    assert np.array_equal(again[0], examples[0][0]) and again[1] == examples[0][1]
    with pytest.raises(MissingInput, match="dev"):
        next(shapes.stills(folder, "dev", seed=0))


def test_naming_the_corpus_imports_neither_torch_nor_av() -> None:
    code = "import prvr.datasets.corpora.shapes, sys; print({'torch', 'av', 'zarr'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
