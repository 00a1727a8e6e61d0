"""``prvr-train`` and ``prvr-eval`` from outside."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from safetensors.torch import load_file

from prvr.datasets.build import build
from prvr.datasets.source import StoreSource
from prvr.datasets.store import Features, FeatureStore
from prvr.manifests.split import Split
from prvr.train import cli
from prvr.train.config import RunConfig

type Invoke = Callable[..., Result]
SMALL = ("--set", "ms-sl.hidden=16", "--batch-size", 4, "--lr", 2e-3, "--seed", 1, "--threads", 1)

# TensorBoard's own protobuf code.
pytestmark = pytest.mark.filterwarnings("ignore:.*PyType_Spec.*:DeprecationWarning")


def _json(result: Result, exit_code: int = 0) -> dict[str, Any]:
    assert result.exit_code == exit_code, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def _refused(result: Result, exit_code: int, message: str) -> None:
    assert result.exit_code == exit_code, result.output
    assert message in result.stderr and not result.stdout and len(result.stderr.splitlines()) == 1, result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, world: Any) -> Path:
    """A run of three epochs on the small world."""
    from click.testing import CliRunner

    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["--shards", world.data, "--out", folder, "--epochs", 3, *SMALL]
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return folder


def test_a_run_has_the_files_of_the_design(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names == {"config.toml", "model.safetensors", "state", "log.jsonl", "tensorboard", "metrics.json", "card.md"}
    log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["epoch"] for line in log] == [1, 2, 3] and [line["step"] for line in log] == [3, 6, 9]
    assert set(log[0]["terms"]) == {"loss", "clip_nce", "clip_triplet", "frame_nce", "frame_triplet"}
    assert log[0]["terms"]["loss"] == pytest.approx(sum(v for k, v in log[0]["terms"].items() if k != "loss"), rel=1e-5)
    assert list((run / "tensorboard").iterdir())


def test_evaluation_gives_what_training_chose(run: Path, world: Any, invoke: Invoke, tmp_path: Path) -> None:
    trained = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["test"]
    scores = tmp_path / "scores.npz"
    result = _json(invoke(cli.evaluate, run, "--shards", world.data, "--save-scores", scores, "--json"))
    assert result["t2v"] == trained["t2v"] and result["split"] == "test" and result["selected_on"] == "test"
    assert result["chance"]["R@1"] == 12.5 and (result["videos"], result["queries"]) == (8, 24)
    with np.load(scores) as saved:
        own = {video.video_id: column for column, video in enumerate(world.split.videos["test"])}
        best = saved["scores"].argmax(axis=1)
        right = [best[row] == own[query.split("#")[0]] for row, query in enumerate(saved["query_ids"])]
    assert result["t2v"]["R@1"] == pytest.approx(100 * np.mean(right))


def test_it_learns(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    words = ("--shards", world.data, "--out", tmp_path / "run", "--epochs", 60, "--set", "loop.patience=60", *SMALL)
    _json(invoke(cli.main, *words, "--json"))
    found = _json(invoke(cli.evaluate, tmp_path / "run", "--shards", world.data, "--split", "train", "--json"))
    assert found["t2v"]["R@1"] > 4 * found["chance"]["R@1"]


def test_the_config_of_a_run_makes_the_same_run(run: Path, world: Any, invoke: Invoke, tmp_path: Path) -> None:
    result = invoke(cli.main, "--shards", world.data, "--out", tmp_path / "again", "--config", run / "config.toml")
    assert result.exit_code == 0, result.output
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "again"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs) and set(ours) == set(theirs)


@pytest.mark.parametrize("every", [60, 0], ids=["after an epoch", "in the middle of one"])
def test_killed_at_any_time_it_ends_with_the_same_weights(
    every: int, world: Any, invoke: Invoke, tmp_path: Path
) -> None:
    common = ("--epochs", 12, "--set", "loop.patience=99", "--set", f"loop.save_seconds={every}", *SMALL)
    words = [str(word) for word in ("--shards", world.data, *common)]
    assert invoke(cli.main, *words, "--out", tmp_path / "calm").exit_code == 0
    killed, seen, kills = tmp_path / "killed", [0, 0], 0
    script = Path(sys.executable).parent / "prvr-train"
    for _ in range(2):
        started = subprocess.Popen(
            [script, *words, "--out", killed], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        state = killed / "state" / "state.json"
        while started.poll() is None and time.monotonic() < deadline:
            stood = json.loads(state.read_text(encoding="utf-8"))["position"] if state.exists() else {}
            reached = [stood.get("epoch", 0), stood.get("batch", 0)]
            if reached > seen and (every or reached[1]):
                os.kill(started.pid, signal.SIGKILL)
                seen, kills = reached, kills + 1
                break
            time.sleep(0.005)
        started.wait()
    assert kills == 2
    assert invoke(cli.main, *words, "--out", killed).exit_code == 0
    for name in ("model.safetensors", "state/epoch-0012-000000.safetensors"):
        ours, theirs = load_file(tmp_path / "calm" / name), load_file(killed / name)
        assert set(ours) == set(theirs) and all(np.array_equal(ours[key], theirs[key]) for key in ours), name
    logs = [(tmp_path / one / "log.jsonl").read_text(encoding="utf-8").splitlines() for one in ("calm", "killed")]
    lines = [[{**json.loads(line), "seconds": 0} for line in log] for log in logs]
    assert lines[0] == lines[1]


def test_shards_behind_a_url(run: Path, world: Any, invoke: Invoke, tmp_path: Path, monkeypatch: Any) -> None:
    import fsspec

    monkeypatch.setenv("PRVR_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for file in world.data.iterdir():
        memory.pipe_file(f"/shards-of-the-test/{file.name}", file.read_bytes())
    words = ("--shards", "memory://shards-of-the-test", "--out", tmp_path / "run", *SMALL)
    _json(invoke(cli.main, *words, "--epochs", 3, "--json"))
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "run"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert len(list((tmp_path / "cache" / "shards").glob("*.tar"))) == 2
    found = _json(invoke(cli.evaluate, tmp_path / "run", "--shards", "memory://shards-of-the-test", "--json"))
    assert found["coverage"] == "all 8 videos and 24 queries"


def test_a_finished_run_is_not_trained_again_and_another_is_refused(run: Path, world: Any, invoke: Invoke) -> None:
    before = (run / "log.jsonl").read_bytes()
    words = ("--shards", world.data, "--out", run, *SMALL)
    assert _json(invoke(cli.main, *words, "--epochs", 3, "--json"))["epochs"] == 3
    assert (run / "log.jsonl").read_bytes() == before
    _refused(invoke(cli.main, *words, "--epochs", 4, "-q"), 2, "begun with another config")


def test_early_stopping_is_one_later_than_the_patience(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    words = ("--shards", world.data, "--out", tmp_path / "run", "--epochs", 50, *SMALL, "--lr", 1e-12)
    result = _json(invoke(cli.main, *words, "--set", "loop.patience=2", "--json"))
    # A rate of almost nothing: the first epoch stays the best, and three bad ones follow.
    assert (result["best_epoch"], result["epochs"]) == (1, 4)


def test_a_video_in_train_and_in_the_reported_split(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    videos = world.split.videos
    both = Split("made", "published", {"train": videos["train"], "test": (*videos["test"], videos["train"][0])})
    build(both, tmp_path / "data", StoreSource([world.videos], world.words))
    words = ("--shards", tmp_path / "data", "--out", tmp_path / "run", "--epochs", 1, *SMALL)
    _refused(invoke(cli.main, *words), 2, "1 videos stand in train and in test, the first 'train.0'")
    assert invoke(cli.main, *words, "--allow-overlap").exit_code == 0


def test_dev_chooses_where_there_is_one(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    videos = world.split.videos
    three = Split(
        "made", "published", {"train": videos["train"][:8], "dev": videos["train"][8:], "test": videos["test"]}
    )
    build(three, tmp_path / "data", StoreSource([world.videos], world.words))
    words = ("--shards", tmp_path / "data", "--epochs", 1, *SMALL, "--json")
    assert _json(invoke(cli.main, *words, "--out", tmp_path / "a"))["selected_on"] == "dev"
    assert _json(invoke(cli.main, *words, "--out", tmp_path / "b", "--select-on", "test"))["selected_on"] == "test"


def test_a_run_of_another_width_or_of_other_features(
    run: Path, invoke: Invoke, tmp_path: Path, make_world: Callable[..., Any], world: Any
) -> None:
    wider = make_world(tmp_path, dim=10)
    _refused(invoke(cli.evaluate, run, "--shards", wider.data), 2, "video features 8 wide, the shards of test 10")
    store = FeatureStore.open(world.videos)
    other = FeatureStore.create(tmp_path / "o.zarr", replace(store.spec, weights_sha256="f" * 64))
    other.commit([Features(id_, "m", store[id_], store.times(id_)) for id_ in store.ids])
    build(world.split, tmp_path / "other", StoreSource([other.path], world.words))
    _refused(invoke(cli.evaluate, run, "--shards", tmp_path / "other"), 2, "weights_sha256")


def test_a_corrupt_shard_fails_after_the_start(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    data = Path(shutil.copytree(world.data, tmp_path / "data"))
    shard = data / "train-000000.tar"
    bad = bytearray(shard.read_bytes())
    bad[5000] ^= 1
    shard.write_bytes(bad)
    _refused(invoke(cli.main, "--shards", data, "--out", tmp_path / "run", "-q", *SMALL), 1, "its bytes changed")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--shards"),
        (["--shards", "absent"], "no shards of split 'train'"),
        (["--shards", "{data}", "--model", "mssl"], "did you mean 'ms-sl'"),
        (["--shards", "{data}", "--model", "ms-sl+rankin"], "did you mean 'ranking'"),
        (["--shards", "{data}", "--preset", "x"], "unknown preset 'x'"),
        (["--shards", "{data}", "--set", "ms-sl.hiden=3"], "did you mean 'ms-sl.hidden'"),
        (["--shards", "{data}", "--set", "ms-sl.variant=papers"], "released"),
        (["--shards", "{data}", "--select-on", "dev"], "no shards of split 'dev'"),
        (["--shards", "{data}", "--precision", "bf16", "--device", "cpu"], "bf16 is for a GPU"),
        (["--shards", "{data}", "--out", "{data}"], "not empty, and not a run"),
    ],
)
def test_what_cannot_start_is_one_line_and_exit_code_2(
    words: list[str], message: str, world: Any, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _refused(invoke(cli.main, *(word.format(data=world.data) for word in words)), 2, message)
    assert not (tmp_path / "runs").exists()


def test_an_absent_run_or_split(run: Path, world: Any, invoke: Invoke, tmp_path: Path) -> None:
    _refused(invoke(cli.evaluate, tmp_path, "--shards", world.data), 2, "no model.safetensors")
    _refused(invoke(cli.evaluate, run, "--shards", world.data, "--split", "dev"), 2, "no shards of split 'dev'")


def test_dry_run_says_and_does_nothing(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    result = _json(invoke(cli.main, "--shards", world.data, "--out", tmp_path / "run", "--dry-run", "--json", *SMALL))
    assert result["config"]["batch_size"] == 4 and not (tmp_path / "run").exists()


def test_every_default_written_to_a_config_is_taken_back(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    RunConfig().write(tmp_path / "config.toml")
    words = ("--shards", world.data, "--config", tmp_path / "config.toml", "--dry-run", "--json")
    assert _json(invoke(cli.main, *words))["config"] == RunConfig().to_tables()
