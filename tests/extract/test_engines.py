"""The engines: the same operator, the same features; what dies is tried again, and what kills is a failure."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from prvr.datasets.ledger import Ledger
from prvr.datasets.store import FeatureStore
from prvr.extract import outputs
from prvr.extract.cli import main
from prvr.extract.engines import local
from prvr.extract.job import Job, Plan
from prvr.extract.recipes import load
from prvr.extract.run import extractor
from prvr.extract.sources import VideoFile
from prvr.extract.weights import Weights

type Invoke = Callable[..., Result]
SCRIPT = Path(sys.executable).parent / "prvr-extract"


def _same(one: Path, other: Path) -> None:
    first, second = FeatureStore.open(one), FeatureStore.open(other)
    assert set(first.ids) == set(second.ids) and not first.verify() and not second.verify()
    for id_ in first.ids:
        np.testing.assert_array_equal(first[id_], second[id_])
        np.testing.assert_array_equal(first.times(id_), second.times(id_))


def _slides(make_video: Callable[..., Path], path: Path, seconds: int) -> Path:
    """A video of few pictures that are shown for long: quick to decode, and many rows."""
    return make_video(path, [1000 * n for n in range(0, seconds, 10)])


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra, and not installed here")
def test_ray_gives_the_same_features(invoke: Invoke, videos: Path, clip_folder: Path, tmp_path: Path) -> None:
    words = [str(videos), "--backbone", "clip", "--weights", str(clip_folder), "--json"]
    local = invoke(main, *words, "--out", tmp_path / "local", "--workers", 1)
    ray = subprocess.run(
        [SCRIPT, *words, "--out", tmp_path / "ray", "--engine", "ray", "--workers", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ray.returncode == local.exit_code == 3, ray.stderr
    one, other = (json.loads(text.splitlines()[-1]) for text in (local.stdout, ray.stdout))
    assert one["videos"] == other["videos"] and one["errors"] == other["errors"]
    _same(tmp_path / "local" / "clip.video.zarr", tmp_path / "ray" / "clip.video.zarr")


def _kill_takers(pool: local._Pool, id_: str, kills: int) -> None:
    """Kill the worker that has taken a source, so often."""
    seen: set[int | None] = set()
    deadline = time.monotonic() + 120
    while len(seen) < kills and time.monotonic() < deadline:
        for worker in list(pool.workers.values()):
            pid = worker.process.pid
            if pid and pid not in seen and any(source.id == id_ for source in worker.taken):
                os.kill(pid, signal.SIGKILL)
                seen.add(pid)
        time.sleep(0.002)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_video_that_kills_two_workers_is_a_failure_and_one_kill_is_not(
    kills: int, make_video: Callable[..., Path], clip_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = [VideoFile("long", _slides(make_video, tmp_path / "long.mp4", 60))]
    sources += [VideoFile(f"v{n}", make_video(tmp_path / f"v{n}.mp4", [100 * t for t in range(20)])) for n in range(3)]
    pool = local._Pool(_job(clip_folder, tmp_path / "f"), sources, workers=2)
    killer = threading.Thread(target=_kill_takers, args=(pool, "long", kills))
    killer.start()
    reports = {report.id: report for report in pool.run()}
    killer.join()
    assert "a worker died (SIGKILL); what it had not committed is tried again" in caplog.text
    assert set(reports) == {"long", "v0", "v1", "v2"} and all(reports[f"v{n}"].status == "extracted" for n in range(3))
    store = FeatureStore.open(tmp_path / "f" / "clip.video.zarr")
    if kills == 1:
        assert reports["long"].status == "extracted" and len(store["long"]) > 1400
    else:
        assert reports["long"].status == "failed" and "alone died (SIGKILL)" in reports["long"].error
        assert "long" not in store and "long" in Ledger(store.path).failures()


def _job(folder: Path, out: Path) -> Job:
    recipe = load("clip", {}, over={"sampling": {"fps": 30.0}})
    weights = Weights(str(folder), folder, None)
    return Job("video", (Plan(recipe, (weights,), out / "clip.video.zarr"),), device="cpu")


def test_a_long_video_continues_where_it_was_stopped(
    make_video: Callable[..., Path], clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = VideoFile("long", _slides(make_video, tmp_path / "long.mp4", 60))
    list(extractor(_job(clip_folder, tmp_path / "calm")).run([long]))
    monkeypatch.setattr(outputs, "PART_SECONDS", 0.0)

    def stopped_after(rows: int) -> int:
        """Stop the run once so many rows are computed; gives how many were computed in it."""
        run = extractor(_job(clip_folder, tmp_path / "stopped"))
        (tower,) = run._outputs[0].makers  # type: ignore[attr-defined]
        compute, computed = tower._compute, 0

        def counted(pictures: Any) -> Any:
            nonlocal computed
            if computed >= rows:
                raise KeyboardInterrupt
            computed += len(pictures)
            return compute(pictures)

        monkeypatch.setattr(tower, "_compute", counted)
        try:
            list(run.run([long]))
        except KeyboardInterrupt:
            assert list((tmp_path / "stopped").glob("*.partial-*.safetensors"))
        return computed

    assert stopped_after(400) == 400
    assert stopped_after(600) == 600
    assert stopped_after(10**9) <= 1503 - 1000 + 2 * 8, "what was kept is not computed again"
    _same(tmp_path / "calm" / "clip.video.zarr", tmp_path / "stopped" / "clip.video.zarr")
    assert [path.name for path in (tmp_path / "stopped").iterdir()] == ["clip.video.zarr"]


def test_what_a_killed_process_was_writing_is_removed(clip_folder: Path, tmp_path: Path, videos: Path) -> None:
    job = _job(clip_folder, tmp_path / "f")
    (output,) = extractor(job)._outputs  # type: ignore[attr-defined]
    path = output.partial._path("v", 0)
    dead, alive = (
        path.with_name(f".{path.name}.{socket.gethostname()}-{pid}-x.tmp") for pid in (2**22 + 1, os.getpid())
    )
    dead.touch()
    alive.touch()
    extractor(job)
    assert not dead.exists() and alive.exists()


def test_rows_kept_of_another_video_of_that_name_do_not_count(
    make_video: Callable[..., Path], clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(clip_folder, tmp_path / "f")
    one = make_video(tmp_path / "one.mp4", [100 * n for n in range(20)])
    run = extractor(job)
    (output,) = run._outputs  # type: ignore[attr-defined]
    output.partial.write("v", "another source", 0, np.ones((3, 12), np.float32))
    list(run.run([VideoFile("v", one)]))
    assert not (FeatureStore.open(tmp_path / "f" / "clip.video.zarr")["v"] == 1).any()


def test_a_full_disk_stops_with_a_reason_and_keeps_what_is_committed(
    videos: Path, clip_folder: Path, tmp_path: Path, invoke: Invoke, make_video: Callable[..., Path]
) -> None:
    (videos / "broken.mp4").unlink()
    words = [str(videos), "--backbone", "clip", "--weights", str(clip_folder), "--workers", "1", "--json"]
    assert invoke(main, *words, "--out", tmp_path / "calm").exit_code == 0
    first = [str(videos / "v0.mp4"), *words[1:], "--out", str(tmp_path / "f")]
    assert invoke(main, *first).exit_code == 0

    def no_room() -> None:
        # A file may grow to 100 bytes: what a full disk is to whoever writes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = subprocess.run(
        [SCRIPT, *words, "--out", tmp_path / "f"], capture_output=True, text=True, preexec_fn=no_room, check=False
    )
    assert done.returncode == 1 and "cannot be written" in done.stderr and "the same command continues" in done.stderr
    assert "Traceback" not in done.stderr
    assert FeatureStore.open(tmp_path / "f" / "clip.video.zarr").ids == ("v0",)
    assert invoke(main, *words, "--out", tmp_path / "f").exit_code == 0
    _same(tmp_path / "calm" / "clip.video.zarr", tmp_path / "f" / "clip.video.zarr")
