"""The demo, small, as its reader runs it: every command a process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import zarr
from safetensors import safe_open

SCRIPT = Path(sys.executable).parent / "prvr-demo"
SMALL = [f"--set=demo.{name}" for name in ("train=8", "test=4", "clip_steps=2", "roberta_steps=2", "epochs=1")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("demo") / "d"
    words = [str(SCRIPT), "--out", str(out), "--seed", "3", "--json", *SMALL]
    return out, subprocess.run(words, capture_output=True, text=True, check=True)


def test_it_ends_with_one_object(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = demo
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    for row in ("metrics", "chance", "zero_shot"):
        assert set(result[row]) == {"R@1", "R@5", "R@10", "R@100", "SumR"}
    assert result["chance"]["R@1"] == 25 and result["metrics"]["R@5"] == 100
    assert result["run"] == str(out / "run") and result["shards"] == str(out / "data")


def test_it_shows_the_commands_that_it_runs(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    shown = [line.split()[1] for line in demo[1].stderr.splitlines() if line.startswith("$ ")]
    extract, build = "prvr-extract", "prvr-build-split"
    assert shown == [build, extract, extract, build, "prvr-train", "prvr-eval"]
    assert "Traceback" not in demo[1].stderr


def test_what_it_leaves_opens_with_plain_tools(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = demo
    for store in ("clip.video", "shapes.roberta.text", "shapes.clip.text"):
        assert zarr.open_group(out / "features" / f"{store}.zarr", mode="r").attrs["format"] == "prvr-features/1"
    with safe_open(out / "run" / "model.safetensors", "pt") as file:
        assert "config" in json.loads(file.metadata()["about"])
    card = (out / "run" / "card.md").read_text(encoding="utf-8")
    assert str(out / "models" / "clip") in card and "chosen on split test" in card
    assert sorted(path.name for path in (out / "data").glob("*.tar")) == ["test-000000.tar", "train-000000.tar"]
