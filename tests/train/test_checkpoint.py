"""Checkpoints: plain safetensors, whole or absent."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from prvr.manifests.errors import CorruptData, MissingInput
from prvr.train.checkpoint import Position, load_model, load_state, read_about, save_model, save_state
from prvr.train.optim import OPTIMISERS, decay_groups


def _trained(steps: int, kind: str = "bertadam") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    optimizer = OPTIMISERS[kind](decay_groups(model, 0.01), lr=1e-2, warmup=0.1, total_steps=10)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_plain_safetensors_opens_the_model(tmp_path: Path) -> None:
    model, _ = _trained(2)
    save_model(tmp_path, model, {"dataset": "made"})
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["about"]) == {"dataset": "made"}
        assert torch.equal(file.get_tensor("0.weight"), model[0].weight)  # type: ignore[index]
    assert read_about(tmp_path) == {"dataset": "made"}
    other, _ = _trained(0)
    load_model(tmp_path, other)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_the_state_continues_as_if_it_had_not_stopped(kind: str, tmp_path: Path) -> None:
    model, optimizer = _trained(3, kind)
    save_state(tmp_path, {"model": model}, optimizer, Position(1, 3, 1, {"SumR": 5.0}))
    again, resumed = _trained(0, kind)
    assert load_state(tmp_path, {"model": again}, resumed) == Position(1, 3, 1, {"SumR": 5.0})
    for one, its in ((model, optimizer), (again, resumed)):
        one(torch.ones(2, 4)).square().sum().backward()
        its.step()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_the_last_state_replaces_the_one_before(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    for epoch in (1, 2):
        save_state(tmp_path, {"model": model}, optimizer, Position(epoch, epoch))
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [
        "epoch-0002-000000.safetensors",
        "state.json",
    ]


def test_no_state_is_the_beginning_and_a_damaged_one_an_error(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    assert load_state(tmp_path, {"model": model}, optimizer) == Position()
    save_state(tmp_path, {"model": model}, optimizer, Position(1, 1))
    path = tmp_path / "state" / "epoch-0001-000000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptData, match="changed since"):
        load_state(tmp_path, {"model": model}, optimizer)


def test_what_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="prvr-train"):
        read_about(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CorruptData):
        read_about(tmp_path)
    save_model(tmp_path, nn.Linear(2, 2), {})
    with pytest.raises(CorruptData):
        load_model(tmp_path, nn.Linear(3, 2))


def test_a_model_of_an_earlier_format_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors", {"format": "prvr-run/1", "about": "{}"})
    with pytest.raises(CorruptData, match="format prvr-run/2; train it again"):
        read_about(tmp_path)
