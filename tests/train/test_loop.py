"""The trainer from inside: it goes on where it stood, averages gradients, and stops with a reason."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from prvr.datasets.build import build
from prvr.datasets.source import StoreSource
from prvr.datasets.store import Features, FeatureStore
from prvr.datasets.stream import ShardReader
from prvr.manifests.errors import PrvrError
from prvr.train import checkpoint, loop, models
from prvr.train.checkpoint import Position
from prvr.train.config import from_tables
from prvr.train.loop import Trainer
from prvr.train.optim import BertAdam, decay_groups
from prvr.train.run import make_model, make_objectives

# TensorBoard's own protobuf code.
pytestmark = pytest.mark.filterwarnings("ignore:.*PyType_Spec.*:DeprecationWarning")


def _train(
    run: Path, shards: Path, model: str = "ms-sl", *, check_leaks: bool = False, **settings: Any
) -> tuple[Trainer, Position]:
    """Train a small model; ``settings`` are those of the loop, of which ``epochs``, ``batch_size``, ``lr`` of the run."""
    own = {name: settings.pop(name) for name in ("epochs", "batch_size", "lr") if name in settings}
    base = model.split("+")[0]
    tables = {"epochs": 3, "batch_size": 5, "lr": 2e-3} | own
    config = from_tables({"model": model, base: {"hidden": 16}, "loop": {"save_seconds": 0.0} | settings, **tables})
    with ShardReader(shards, "train") as train, ShardReader(shards, "test") as select:
        network = make_model(config, frame_width=8, word_width=6)
        objectives = make_objectives(config, network)
        groups = decay_groups(nn.ModuleList([network, *objectives.values()]), 0.01)
        trainer = Trainer(
            run=run, config=config, model=network, objectives=objectives,
            optimizer=BertAdam(groups, lr=config.lr, total_steps=3 * config.epochs, warmup=0.1),
            train=train, select=select, device=torch.device("cpu"), about={}, check_leaks=check_leaks,
        )  # fmt: skip
        return trainer, trainer.fit()


def _log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("base", models.names())
def test_every_model_goes_on_in_the_middle_of_an_epoch(
    base: str, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters of objectives included: each weight and moment is that of a run that was never stopped."""
    name = f"{base}+ice+irm+tcp"
    _train(tmp_path / "calm", world.data, name)

    def stopping(run: Path, modules: Any, optimizer: Any, position: Position) -> None:
        saved(run, modules, optimizer, position)
        if (position.epoch, position.batch) == (1, 2):
            raise KeyboardInterrupt

    saved = checkpoint.save_state
    monkeypatch.setattr(loop, "save_state", stopping)
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path / "stopped", world.data, name)
    monkeypatch.setattr(loop, "save_state", saved)
    _train(tmp_path / "stopped", world.data, name)
    for file in ("model.safetensors", "state/epoch-0003-000000.safetensors"):
        ours, theirs = load_file(tmp_path / "calm" / file), load_file(tmp_path / "stopped" / file)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(key.startswith("objectives.tcp") for key in ours) and any(key.startswith("optimizer") for key in ours)


def test_gradients_of_several_batches_make_one_step(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 videos are 3 batches of 5, 5 and 2: two steps an epoch, of the mean gradient of two and of the one that is left."""
    steps: list[list[Tensor]] = []
    real = BertAdam.step

    def noting(self: BertAdam, closure: None = None) -> None:
        steps.append([p.grad.clone() for group in self.param_groups for p in group["params"] if p.grad is not None])
        real(self, closure)

    monkeypatch.setattr(BertAdam, "step", noting)
    # At a rate of nothing the weights stay, and both runs draw the same numbers for the same batch.
    _train(tmp_path / "one", world.data, epochs=1, lr=1e-30)
    single, steps[:] = list(steps), []
    _, position = _train(tmp_path / "two", world.data, epochs=1, lr=1e-30, accumulate=2)
    assert (len(single), len(steps), position.step) == (3, 2, 2)
    means = [(one + two) / 2 for one, two in zip(*single[:2], strict=True)]
    assert len(means) > 20
    for found, expected in zip(steps, (means, single[2]), strict=True):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_rate_of_the_last_step_is_logged(world: Any, tmp_path: Path) -> None:
    _train(tmp_path / "run", world.data)
    # 9 steps, a tenth of them warm-up: after the 3rd, 6th and 9th, those of progress 2/9, 5/9 and 8/9.
    assert [line["lr"] for line in _log(tmp_path / "run")] == pytest.approx(
        [2e-3 * (1 - done / 9) / 0.9 for done in (2, 5, 8)]
    )


def test_a_loss_that_is_not_a_number_stops_it(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prvr.train.objectives import ranking

    monkeypatch.setattr(ranking, "unpaired_nce", lambda dot, owner: dot.sum() * math.nan)
    with pytest.raises(PrvrError, match=r"step 0: the loss is not a number: .*clip_nce.: nan"):
        _train(tmp_path / "run", world.data)
    assert not (tmp_path / "run" / "state" / "state.json").exists()


def test_scores_of_chance_stop_it(make_world: Callable[..., Any], tmp_path: Path) -> None:
    """At a rate of nothing nothing is learnt; the reason comes again when the run is continued."""
    shards = make_world(tmp_path / "world", train=6, test=40).data
    for _ in range(2):
        with pytest.raises(PrvrError, match="after 2 epochs the scores are still those of chance"):
            _train(tmp_path / "run", shards, chance_epochs=2, lr=1e-30)
    assert len(_log(tmp_path / "run")) == 2
    _, position = _train(tmp_path / "other", shards, chance_epochs=0, lr=1e-30)
    assert position.epoch == 3


def test_a_video_of_test_under_another_name_in_train_stops_it(world: Any, tmp_path: Path) -> None:
    videos = dict(world.split.videos)
    train, test = videos["train"], videos["test"]
    # The same features and captions, of another id: as one who renames a file and forgets it.
    again = replace(
        train[3], video_id="renamed", queries=tuple(replace(q, query_id=f"r{q.query_id}") for q in train[3].queries)
    )
    videos["test"] = (*test[:2], again)
    stores = []
    for number, path in enumerate((world.videos, world.words)):
        shutil.copytree(path, tmp_path / path.name)
        store = FeatureStore.open(tmp_path / path.name)
        stores.append(tmp_path / path.name)
        old = [train[3].video_id] if number == 0 else [q.query_id for q in train[3].queries]
        new = ["renamed"] if number == 0 else [q.query_id for q in again.queries]
        rows = [
            Features(name, "made" if number == 0 else query.fingerprint(), store[there], np.asarray(store.times(there)))
            for there, name, query in zip(old, new, again.queries, strict=False)
        ]
        store.commit(rows)
    split = replace(world.split, videos=videos)
    build(split, tmp_path / "data", StoreSource([stores[0]], stores[1]))
    with pytest.raises(
        PrvrError, match=r"1 videos of test are in train under another name, the first 'renamed' as 'train\.3'"
    ):
        _train(tmp_path / "run", tmp_path / "data", check_leaks=True)
    _train(tmp_path / "run", tmp_path / "data", epochs=1)
