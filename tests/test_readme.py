"""The README's road by hand, taken word for word from it, on a folder of videos made here."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from prvr.datasets.cli import main as build_split
from prvr.datasets.index import Index
from prvr.extract.cli import main as extract
from prvr.train.cli import evaluate
from prvr.train.cli import main as train

COMMANDS = {"prvr-build-split": build_split, "prvr-extract": extract, "prvr-train": train, "prvr-eval": evaluate}


# TensorBoard's own protobuf code.
@pytest.mark.filterwarnings("ignore:.*PyType_Spec.*:DeprecationWarning")
def test_five_commands_on_ones_own_folder(
    root: Path,
    invoke: Callable[..., Result],
    make_video: Callable[..., Path],
    clip_folder: Path,
    roberta_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    block = next(
        block for block in re.findall(r"```\n(.*?)```", readme, re.DOTALL) if block.startswith("prvr-build-split")
    )
    commands = [shlex.split(line) for line in block.splitlines()]
    assert len(commands) == 5

    monkeypatch.chdir(tmp_path)
    Path("videos").mkdir()
    lines = []
    for number in range(12):
        pace = 100 + 20 * number  # the same pictures at the same pace would be a leak, and stop the training
        make_video(Path("videos") / f"v{number}.mp4", [pace * n for n in range(20 + number)])
        lines.append({"video_id": f"v{number}", "text": f"a red square bounces {number}", "start": 0.5, "end": 1.5})
    Path("captions.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    # The one thing that cannot be done here is the download: folders in the same formats stand for it.
    weights = {"clip": clip_folder, "roberta": roberta_folder}
    for name, *words in commands:
        if name == "prvr-extract":
            words += ["--weights", str(weights[words[words.index("--backbone") + 1]])]
        if name == "prvr-train":
            words += ["--epochs", "2", "--set", "ms-sl.hidden=16"]
        result = invoke(COMMANDS[name], *words)
        assert result.exit_code == 0, result.output
    assert Index.read(Path("data/mine"), "train").queries + Index.read(Path("data/mine"), "test").queries == 12
    said = re.search(r"`(prvr-eval [^`]*)`", readme)
    assert said
    assert invoke(evaluate, *shlex.split(said[1])[1:], "--save-scores", "scores.npz").exit_code == 0
    assert Path("scores.npz").is_file()


def test_every_command_in_the_readme_exists(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    import tomllib

    scripts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(re.findall(r"\bprvr-[a-z-]+", readme)) - {"prvr-shards"} <= set(scripts)
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)", readme)) <= targets
