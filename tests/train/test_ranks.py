"""Several processes train as one: torchrun over Gloo, on the CPU. Torchrun starts this very file."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prvr.datasets.batch import Batch
from prvr.datasets.plan import share
from prvr.train import cli, models
from prvr.train.config import from_tables
from prvr.train.ranks import ALONE, World, join
from prvr.train.retriever import retriever
from prvr.train.run import make_model, make_objectives
from prvr.train.step import TrainingStep, parallel

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
CASES: dict[str, dict[str, Any]] = {
    **{f"{base}+ice+irm+tcp": {} for base in models.names()},
    **{f"{base}+ral": {} for base in ("dual-branch", "gmmformer-v2")},
    "ms-sl": {"variant": "paper", "encoder": "gru"},
}
"""Names of runs, and settings of their models."""
WIDTH, CLIPS = 12, 32
LOUD: dict[str, dict[str, Any]] = {"ice": {"threshold": -1.0, "contrast": {"margin": 2.0}}}
"""Settings under which something is to be learnt from random weights."""
BATCHES = {"whole": ((9, 30, 1, 17, 5, 12, 3), (2, 5, 1, 4, 3)), "of one": ((6,), (2, 3))}
"""Frames of each video, and words of the queries, which belong to the videos in turn, of each batch."""


def tables(name: str) -> dict[str, Any]:
    """Settings of a run of this name."""
    base, *added = name.split("+")
    return {"model": name, base: {"hidden": 32} | CASES[name], **{each: LOUD[each] for each in added if each in LOUD}}


def gradients(name: str, kind: str, world: World) -> dict[str, Tensor]:
    """Loss terms of a batch, and the gradient of each parameter of model and objectives, without dropout."""
    config = from_tables(tables(name))
    model = make_model(config, frame_width=WIDTH, word_width=WIDTH)
    objectives = make_objectives(config, model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in nn.ModuleList([model, *objectives.values()]).parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    step = TrainingStep(retriever=retriever(model, objectives), base=model, objectives=objectives, world=world)
    wrapped = step if world.size == 1 else parallel(step)
    wrapped.eval()
    terms: dict[str, Tensor] = wrapped(batch(kind, world), 0, torch.Generator().manual_seed(3))
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    found = {f"term.{term}": value.detach() for term, value in terms.items()}
    named = nn.ModuleDict({"model": model, **objectives}).named_parameters()
    return found | {path: parameter.grad for path, parameter in named if parameter.grad is not None}


def batch(kind: str, world: World) -> Batch:
    """This rank's share of a batch, padded to its own longest."""
    frames, words = BATCHES[kind]
    generator = torch.Generator().manual_seed(1)
    videos = [
        (torch.randn(length, WIDTH, generator=generator), torch.randn(CLIPS, WIDTH, generator=generator))
        for length in frames
    ]
    queries = [torch.randn(length, WIDTH, generator=generator) for length in words]
    own = share(range(len(frames)), rank=world.rank, world=world.size)
    mine = [(query, own.index(video)) for number, query in enumerate(queries) if (video := number % len(frames)) in own]
    mine.sort(key=lambda pair: pair[1])  # as a reader gives them: video by video
    frame_rows, frame_mask = _padded([videos[video][0] for video in own])
    word_rows, word_mask = _padded([query for query, _ in mine])
    clips = torch.stack([videos[video][1] for video in own]) if own else torch.zeros(0, CLIPS, WIDTH)
    owner = torch.tensor([row for _, row in mine], dtype=torch.long)
    return Batch(frame_rows, frame_mask, clips, word_rows, word_mask, owner)


def _padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(each) for each in rows], dtype=torch.long)
    longest = int(lengths.max()) if rows else 0
    mask = torch.arange(longest) < lengths[:, None]
    values = torch.zeros(len(rows), longest, WIDTH)
    for row, each in enumerate(rows):
        values[row, : len(each)] = each
    return values, mask


pytestmark = pytest.mark.filterwarnings("ignore:.*PyType_Spec.*:DeprecationWarning")


def torchrun(ranks: int, *words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, f"--nproc-per-node={ranks}", *map(str, words)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module", params=[2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """How many, and the folder of what they found."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(request.param, __file__, folder, *CASES)
    assert done.returncode == 0, done.stderr
    return request.param, folder


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_one_process(name: str, kind: str, ranks: tuple[int, Path]) -> None:
    """In a batch of one video, the other ranks have nothing of their own."""
    expected = gradients(name, kind, ALONE)
    assert any(path.startswith("term.") for path in expected) and len(expected) > 20
    for rank in range(ranks[0]):
        found = load_file(ranks[1] / f"{name}.{kind}.{rank}.safetensors")
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            torch.testing.assert_close(found[path], value, rtol=1e-4, atol=1e-5 * max(1.0, value.abs().max().item()))


@pytest.mark.parametrize("model", ["dual-branch+ice+irm+tcp"])
def test_killed_in_an_epoch_it_goes_on_with_another_number_of_ranks(
    model: str, world: Any, invoke: Any, tmp_path: Path
) -> None:
    """Two ranks are killed, one goes on to the end: as one from the start, up to the order of sums; without dropout."""
    base = model.split("+")[0]
    settings = (f"{base}.hidden=16", f"{base}.dropout=0", f"{base}.input_dropout=0", "loop.save_seconds=0")
    words = ["--shards", world.data, "--model", model, "--epochs", 20, "--batch-size", 5, "--lr", 2e-3, "--threads", 1]
    words += [word for setting in (*settings, "loop.patience=99") for word in ("--set", setting)]
    assert invoke(cli.main, *words, "--out", tmp_path / "calm").exit_code == 0
    killed = tmp_path / "killed"
    script = Path(sys.executable).parent / "prvr-train"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    # As torchrun starts them, which has sessions of their own for them, where a signal to it does not arrive.
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [str(word) for word in (script, *words, "--out", killed)],
            env={**environment, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for rank in "01"
    ]  # fmt: skip
    state, position = killed / "state" / "state.json", {"epoch": 0, "batch": 0}
    deadline = time.monotonic() + 240
    while ranks[0].poll() is None and time.monotonic() < deadline:
        if state.exists():
            position = json.loads(state.read_text(encoding="utf-8"))["position"]
        if position["epoch"] >= 1 and position["batch"]:
            break
        time.sleep(0.002)
    for rank in ranks:
        rank.kill()
    assert [rank.wait() for rank in ranks] == [-signal.SIGKILL, -signal.SIGKILL] and position["epoch"] >= 1
    assert invoke(cli.main, *words, "--out", killed).exit_code == 0
    for name in ("model.safetensors", "state/epoch-0020-000000.safetensors"):
        ours, theirs = load_file(tmp_path / "calm" / name), load_file(killed / name)
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            torch.testing.assert_close(theirs[key], value, rtol=1e-3, atol=1e-4)


def test_one_rank_answers_and_its_log_is_that_of_one_process(world: Any, invoke: Any, tmp_path: Path) -> None:
    """Batches of 5, 5 and 2 videos; the gradients of two make a step."""
    settings = ("ms-sl.hidden=16", "ms-sl.dropout=0", "ms-sl.input_dropout=0", "loop.accumulate=2")
    words = ["--shards", world.data, "--epochs", 2, "--batch-size", 5, "--threads", 1, "--json"]
    words += [word for setting in settings for word in ("--set", setting)]
    script = Path(sys.executable).parent / "prvr-train"
    done = torchrun(2, "--no-python", script, *words, "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["epochs"] == 2
    assert invoke(cli.main, *words, "--out", tmp_path / "one").exit_code == 0
    logs = [(tmp_path / one / "log.jsonl").read_text(encoding="utf-8").splitlines() for one in ("one", "two")]
    for one, two in zip(*logs, strict=True):
        ours, theirs = json.loads(one), json.loads(two)
        assert (ours["epoch"], ours["step"], ours["metrics"]) == (theirs["epoch"], theirs["step"], theirs["metrics"])
        assert theirs["terms"] == pytest.approx(ours["terms"], rel=1e-4)
    assert theirs["step"] == 4


if __name__ == "__main__":
    torch.set_num_threads(1)
    here, _ = join("cpu")
    for spelled in sys.argv[2:]:
        for kind in BATCHES:
            found = gradients(spelled, kind, here)
            save_file(found, Path(sys.argv[1]) / f"{spelled}.{kind}.{here.rank}.safetensors")
    torch.distributed.destroy_process_group()
