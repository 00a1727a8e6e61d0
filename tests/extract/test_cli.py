"""``prvr-extract`` from outside: what it writes, what it says, and that a kill loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from prvr.datasets.store import FeatureStore
from prvr.extract.cli import main
from prvr.extract.decode import FrameBatch, decode
from prvr.extract.sampling import Sampling
from prvr.manifests import subtitles
from prvr.manifests.split import Query, Split, Video
from prvr.manifests.subtitles import Subtitle

type Invoke = Callable[..., Result]
SCRIPT = Path(sys.executable).parent / "prvr-extract"


def _json(result: Result, exit_code: int = 0) -> dict[str, Any]:
    assert result.exit_code == exit_code, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def _decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the videos that are decoded from now on."""
    from prvr.extract import videos

    names: list[str] = []

    def counted(
        video: Path, samplings: Sequence[Sampling], *, decoder: str, rate: float | None
    ) -> Iterator[FrameBatch]:
        names.append(video.name)
        return decode(video, samplings, decoder=decoder, rate=rate)

    monkeypatch.setattr(videos, "decode", counted)
    return names


def _same(one: Path, other: Path) -> None:
    first, second = FeatureStore.open(one), FeatureStore.open(other)
    assert set(first.ids) == set(second.ids) and not first.verify() and not second.verify()
    for id_ in first.ids:
        np.testing.assert_array_equal(first[id_], second[id_])
        np.testing.assert_array_equal(first.times(id_), second.times(id_))


def test_every_file_is_accounted_for_and_the_next_run_tries_the_failures_alone(
    invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (videos, "--backbone", "clip", "--weights", clip_folder, "--out", tmp_path / "f", "--json", "--workers", 1)
    first = _json(invoke(main, *words), 3)
    assert first["videos"] == {"total": 7, "extracted": 6, "skipped": 0, "failed": 1}
    assert first["ignored"] == 1 and first["stores"] == [str(tmp_path / "f" / "clip.video.zarr")]
    (error,) = first["errors"]
    assert error["source"].endswith("broken.mp4") and "Invalid data" in error["error"]
    assert FeatureStore.open(first["stores"][0]).spec.dim == 12
    ledger = (tmp_path / "f" / "clip.video.ledger.jsonl").read_text(encoding="utf-8")
    assert json.loads(ledger)["id"] == "broken"

    decoded = _decoded(monkeypatch)
    again = _json(invoke(main, *words), 3)
    assert again["videos"] == {"total": 7, "extracted": 0, "skipped": 6, "failed": 1} and decoded == ["broken.mp4"]
    assert _json(invoke(main, *words, "--skip-failed"))["videos"]["skipped"] == 7


def test_rows_and_times_are_those_of_the_grid(invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path) -> None:
    words = (videos / "v5.mp4", "--backbone", "clip", "--weights", clip_folder, "--out", tmp_path, "--fps", 2)
    assert invoke(main, *words).exit_code == 0
    store = FeatureStore.open(tmp_path / "clip.video.zarr")
    np.testing.assert_allclose(store.times("v5"), [0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75])
    assert store["v5"].shape == (8, 12)


def test_two_backbones_share_one_decode(
    invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = _decoded(monkeypatch)
    common = ("--weights", f"clip={clip_folder}", "--json", "--workers", 1)
    sizes = ("--set", "resnet.video.framing.size=[32, 32]", "--set", "resnet.sampling.fps=1")
    both = (
        "--backbone",
        "resnet",
        "--backbone",
        "clip",
        "--weights",
        "resnet=random:0",
        *sizes,
        "--out",
        tmp_path / "both",
    )
    result = _json(invoke(main, videos / "v1.mp4", videos / "v2.mp4", *both, *common))
    assert len(result["stores"]) == 2 and decoded == ["v1.mp4", "v2.mp4"]
    invoke(main, videos / "v1.mp4", videos / "v2.mp4", "--backbone", "clip", *common, "--out", tmp_path / "one")
    _same(tmp_path / "both" / "clip.video.zarr", tmp_path / "one" / "clip.video.zarr")
    resnet = FeatureStore.open(tmp_path / "both" / "resnet.video.zarr")
    assert resnet["v1"].shape == (2, 2048) and resnet.spec.weights == "random:0"


def test_captions_of_a_split(invoke: Invoke, roberta_folder: Path, clip_folder: Path, tmp_path: Path) -> None:
    videos = tuple(
        Video(f"v{n}", None, tuple(Query(f"v{n}#{q}", f"a red square {q}") for q in range(3))) for n in range(4)
    )
    Split("own", "published", {"train": videos[:3], "test": videos[3:]}).write(tmp_path / "data")
    words = (tmp_path / "data", "--backbone", "roberta", "--backbone", "clip", "--out", tmp_path / "f", "--json")
    weights = ("--weights", f"roberta={roberta_folder}", "--weights", f"clip={clip_folder}")
    result = _json(invoke(main, *words, *weights))
    assert result["stores"] == [str(tmp_path / "f" / f"own.{name}.text.zarr") for name in ("roberta", "clip")]
    store = FeatureStore.open(tmp_path / "f" / "own.roberta.text.zarr")
    assert set(store.ids) == {f"v{n}#{q}" for n in range(4) for q in range(3)} and store.spec.stream == "text"
    changed = Video("v0", None, (*videos[0].queries[:2], Query("v0#2", "a green circle")))
    Split("own", "published", {"train": (changed, *videos[1:3]), "test": videos[3:]}).write(tmp_path / "data")
    assert _json(invoke(main, *words, *weights))["videos"] == {"total": 4, "extracted": 1, "skipped": 3, "failed": 0}


def test_subtitles_of_a_split(invoke: Invoke, roberta_folder: Path, clip_folder: Path, tmp_path: Path) -> None:
    Split("own", "published", {"test": tuple(Video(f"v{n}", None, ()) for n in range(3))}).write(tmp_path / "data")
    asked = (tmp_path / "data", "--subtitles", "--backbone", "roberta", "--weights", roberta_folder)
    words = (*asked, "--out", tmp_path / "f", "--json")
    absent = invoke(main, *words)
    assert absent.exit_code == 2 and "no subtitles there" in absent.stderr
    said = {f"v{n}": (Subtitle("a red square", 0.0, 1.0), Subtitle(f"two shapes {n}", 1.5, 2.0)) for n in range(2)}
    subtitles.write(tmp_path / "data", said)
    result = _json(invoke(main, *words))
    assert result["stores"] == [str(tmp_path / "f" / "own.roberta.subtitles.zarr")]
    store = FeatureStore.open(tmp_path / "f" / "own.roberta.subtitles.zarr")
    assert store.ids == ("v0", "v1") and store.spec.stream == "subtitles"
    numbers = store.times("v0").tolist()
    assert sorted(set(numbers)) == [0.0, 1.0] and numbers == sorted(numbers)
    subtitles.write(tmp_path / "data", said | {"v1": (Subtitle("a green circle", 0.0, 1.0),)})
    assert _json(invoke(main, *words))["videos"] == {"total": 2, "extracted": 1, "skipped": 1, "failed": 0}
    clip = invoke(main, *asked[:3], "clip", "--weights", clip_folder, "--out", tmp_path / "g")
    assert clip.exit_code == 2 and "makes no subtitles features" in clip.stderr
    videos = invoke(main, tmp_path / "data" / "train.mp4", *words[1:])
    assert videos.exit_code == 2


def test_a_changed_video_is_extracted_again(invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path) -> None:
    words = (videos / "v0.mp4", "--backbone", "clip", "--weights", clip_folder, "--out", tmp_path / "f", "--json")
    _json(invoke(main, *words))
    before = FeatureStore.open(tmp_path / "f" / "clip.video.zarr")["v0"]
    (videos / "v0.mp4").write_bytes((videos / "v5.mp4").read_bytes())
    assert _json(invoke(main, *words))["videos"] == {"total": 1, "extracted": 1, "skipped": 0, "failed": 0}
    assert len(FeatureStore.open(tmp_path / "f" / "clip.video.zarr")["v0"]) > len(before)


def test_parts_of_several_machines_are_one_store(
    invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path
) -> None:
    (videos / "broken.mp4").unlink()
    words = (videos, "--backbone", "clip", "--weights", clip_folder, "--json")
    for part in range(3):
        result = _json(invoke(main, *words, "--out", tmp_path / "parts", "--num-parts", 3, "--part-index", part))
        assert result["videos"]["total"] == 2
    _json(invoke(main, *words, "--out", tmp_path / "whole", "--workers", 2))
    _same(tmp_path / "parts" / "clip.video.zarr", tmp_path / "whole" / "clip.video.zarr")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent", "--backbone", "clip"], "absent: no such file or folder"),
        (["{videos}", "--backbone", "clop"], "unknown backbone 'clop': did you mean 'clip'"),
        (["{videos}", "--recipe", "clop"], "unknown recipe 'clop'"),
        (["{videos}"], "name a --backbone"),
        (["--backbone", "clip"], "name a SOURCE"),
        (["{videos}", "--backbone", "roberta", "--weights", "{roberta}"], "'roberta' makes no video features"),
        (["{videos}", "--backbone", "clip", "--weights", "./absent"], "weights './absent': no such"),
        (["{videos}", "--backbone", "clip", "--weights", "{roberta}"], "CLIPVisionModelWithProjection"),
        (["{videos}", "--backbone", "resnet", "--weights", "{videos}/v0.mp4"], "not a file of weights"),
        (["{videos}", "--backbone", "clip", "--weights", "{clip}", "--decoder", "x"], "unknown decoder 'x'"),
        (["{videos}", "--backbone", "clip", "--weights", "{clip}", "--device", "x"], "--device 'x'"),
        (["{videos}", "--backbone", "clip", "--backbone", "resnet", "--weights", "{clip}"], "BACKBONE=VALUE"),
        (
            ["{videos}", "--backbone", "clip", "--weights", "{clip}", "--set", "clip.sampling.fsp=1"],
            "clip.sampling.fps",
        ),
        (["{videos}", "--backbone", "clip", "--weights", "{clip}", "--set", "clip.video.crop=1"], "clip.video.crop"),
        (["{videos}", "--backbone", "clip", "--weights", "{clip}", "--fps", "0"], "fps"),
        (
            ["{videos}", "--backbone", "clip", "--weights", "{clip}", "--num-parts", "2", "--part-index", "2"],
            "--part-index 2",
        ),
    ],
)
def test_what_cannot_start_is_one_line_and_exit_code_2(
    words: list[str],
    message: str,
    invoke: Invoke,
    videos: Path,
    clip_folder: Path,
    roberta_folder: Path,
    tmp_path: Path,
) -> None:
    filled = [word.format(videos=videos, clip=clip_folder, roberta=roberta_folder) for word in words]
    result = invoke(main, *filled, "--out", tmp_path / "f")
    assert result.exit_code == 2, result.output
    assert message in result.stderr and not result.stdout
    assert len(result.stderr.splitlines()) == 1


def test_another_recipe_in_the_same_store_is_refused(
    invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path
) -> None:
    words = (videos / "v0.mp4", "--backbone", "clip", "--weights", clip_folder, "--out", tmp_path / "f")
    assert invoke(main, *words).exit_code == 0
    other = invoke(main, *words, "--fps", 1)
    assert other.exit_code == 2 and "recipe_digest" in other.stderr and "--overwrite" in other.stderr
    kept = tmp_path / "f" / "clip.video.partial-0.safetensors"
    kept.touch()
    assert invoke(main, *words, "--fps", 1, "--overwrite").exit_code == 0 and not kept.exists()
    assert invoke(main, *words, "--name", "other").exit_code == 0
    assert (tmp_path / "f" / "other.zarr").is_dir()


def test_dry_run_writes_nothing(invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path) -> None:
    words = (videos, "--backbone", "clip", "--weights", clip_folder, "--out", tmp_path / "f", "--dry-run", "--json")
    assert _json(invoke(main, *words))["total"] == 7 and not (tmp_path / "f").exists()


def _until_gone(group: int) -> None:
    """A killed worker that is writing to disk dies when that is done."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        members = [stat for stat in Path("/proc").glob("[0-9]*/stat") if _group_of(stat) == group]
        if not members:
            return
        time.sleep(0.05)


def _group_of(stat: Path) -> int | None:
    try:
        state, _, group = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(group)


def test_killed_again_and_again_it_ends_with_the_same_features(
    invoke: Invoke, make_video: Callable[..., Path], clip_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "videos").mkdir()
    for number in range(80):
        make_video(tmp_path / "videos" / f"{number}.mp4", [100 * n for n in range(40)], options={"preset": "ultrafast"})
    words = [str(tmp_path / "videos"), "--backbone", "clip", "--weights", str(clip_folder)]
    assert invoke(main, *words, "--out", tmp_path / "calm", "--workers", 1).exit_code == 0
    killed = tmp_path / "killed"
    store = killed / "clip.video.zarr"
    kills = 0
    for workers in ("2", "1", "2"):
        before = len(FeatureStore.open(store)) if store.exists() else 0
        started = subprocess.Popen(
            [SCRIPT, *words, "--out", killed, "--workers", workers], stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while started.poll() is None and time.monotonic() < deadline:
            if store.exists() and len(FeatureStore.open(store)) > before:
                os.killpg(started.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        started.wait()
        _until_gone(started.pid)
        assert not FeatureStore.open(store).verify()
    assert kills >= 1
    last = _json(invoke(main, *words, "--out", killed, "--json", "--workers", 1))
    assert last["videos"]["extracted"] + last["videos"]["skipped"] == 80
    _same(tmp_path / "calm" / "clip.video.zarr", store)
    assert {path.name for path in killed.iterdir()} == {"clip.video.zarr"}
