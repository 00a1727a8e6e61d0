"""Checkpoints: safetensors and JSON, no pickle, written aside and renamed.

``run/model.safetensors`` is the chosen model and tells in its metadata what it was trained on. ``run/state/`` is where
training stands: ``state.json``, written last, names the tensors that belong to it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.files import read_json, sha256_of, write_json, written_aside

MODEL = "model.safetensors"
FORMAT = "prvr-run/2"


@dataclass(frozen=True)
class Position:
    """Where training stands, after an epoch or in the middle of one.

    Args:
        epoch: epochs done. ``step``: optimizer steps done.
        batch: batches done of the next epoch. ``sums``: of their loss terms.
        best_epoch, best: the chosen epoch, from 1, and its metrics.
        bad: epochs since.
        stopped: whether training is over.
        learnt: whether any epoch's scores were better than those of chance.
    """

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best: Mapping[str, float] | None = None
    bad: int = 0
    stopped: bool = False
    learnt: bool = False
    batch: int = 0
    sums: Mapping[str, float] = field(default_factory=dict)


def save_model(run: Path, model: nn.Module, about: Mapping[str, Any]) -> None:
    """Write the chosen model; ``about`` is JSON that travels with it."""
    with written_aside(run / MODEL) as aside:
        save_file(_plain(model.state_dict()), aside, {"format": FORMAT, "about": json.dumps(about)})


def read_about(run: Path) -> dict[str, Any]:
    """What the chosen model was trained on.

    Raises:
        MissingInput: the run has no model yet.
        CorruptData: the file is not one that ``save_model`` wrote.
    """
    path = run / MODEL
    if not path.is_file():
        raise MissingInput(f"{run}: no {MODEL} there; train one with prvr-train")
    try:
        with safe_open(path, "pt") as file:
            marks = file.metadata() or {}
            about = json.loads(marks["about"])
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise CorruptData(f"{path}: not a model of the format {FORMAT} ({error})") from None
    if not isinstance(about, dict) or marks.get("format") != FORMAT:
        raise CorruptData(f"{path}: not a model of the format {FORMAT}; train it again")
    return about


def load_model(run: Path, model: nn.Module) -> None:
    """Read the chosen model's weights; raises CorruptData where they are of another shape."""
    try:
        model.load_state_dict(load_file(run / MODEL))
    except (SafetensorError, RuntimeError) as error:
        raise CorruptData(f"{run / MODEL}: {error}") from None


def save_state(
    run: Path, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, position: Position
) -> None:
    """Write where training stands; the one before it is removed when this one is whole."""
    folder = run / "state"
    tensors = {
        f"{part}.{name}": value for part, module in modules.items() for name, value in module.state_dict().items()
    }
    numbers: dict[str, dict[str, float]] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    path = folder / f"epoch-{position.epoch:04d}-{position.batch:06d}.safetensors"
    with written_aside(path) as aside:
        save_file(_plain(tensors), aside)
    head = {"position": asdict(position), "tensors": path.name, "sha256": sha256_of(path), "optimizer": numbers}
    write_json(folder / "state.json", head)
    for old in folder.glob("epoch-*.safetensors"):
        if old != path:
            old.unlink()


def load_state(run: Path, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer) -> Position:
    """Read where training stood; a run that never saved a state starts at the beginning.

    Raises:
        CorruptData: the state's tensors are absent, or are not those that were written.
    """
    folder = run / "state"
    if not (folder / "state.json").is_file():
        return Position()
    head = read_json(folder / "state.json")
    path = folder / head["tensors"]
    if not path.is_file() or sha256_of(path) != head["sha256"]:
        raise CorruptData(f"{path}: absent or changed since it was written; start again with --overwrite")
    tensors = load_file(path)
    for part, module in modules.items():
        module.load_state_dict(
            {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}
        )
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in head["optimizer"].items()}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return Position(**head["position"])


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
