"""The training loop: one for every model and objective; it knows none by name.

Every random number of a step comes from (seed, step) alone, so a run that was killed and continued gives the weights
of one that was not.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prvr.datasets.batch import Batch
from prvr.datasets.plan import batches, epoch_order
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.errors import PrvrError
from prvr.manifests.files import write_text
from prvr.manifests.progress import progress
from prvr.train.checkpoint import Position, load_state, save_model, save_state
from prvr.train.config import RunConfig
from prvr.train.evaluate import rank_split
from prvr.train.interface import Objective, Step, VideoTextModel

_log = logging.getLogger(__name__)


class Trainer:
    """Trains one model on one split and chooses the epoch by another.

    Args:
        run: folder of the run; a state there is continued.
        about: what travels with the chosen model.
    """

    def __init__(
        self,
        *,
        run: Path,
        config: RunConfig,
        model: VideoTextModel,
        objectives: Mapping[str, Objective],
        optimizer: torch.optim.Optimizer,
        train: ShardReader,
        select: ShardReader,
        device: torch.device,
        about: Mapping[str, Any],
    ) -> None:
        self.run = run
        self.config = config
        self.model = model
        self.objectives = torch.nn.ModuleDict(objectives)
        self.optimizer = optimizer
        self.train = train
        self.select = select
        self.device = device
        self.about = about
        self.collate = Collate(normalise=config.data.normalise, max_words=config.data.max_words)

    def fit(self) -> Position:
        """Train to the end; gives the final position.

        Raises:
            PrvrError: a loss that is not a number.
        """
        modules = {"model": self.model, "objectives": self.objectives}
        save = partial(save_state, self.run, modules, self.optimizer)
        position = load_state(self.run, modules, self.optimizer)
        if position.step:
            _log.info("%s: continuing after epoch %d, batch %d", self.run, position.epoch, position.batch)
        with _Log(self.run, position.epoch) as log:
            while position.epoch < self.config.epochs and not position.stopped:
                position = self._epoch(position, log, save)
        return position

    def _epoch(self, position: Position, log: "_Log", save: Callable[[Position], None]) -> Position:
        started = saved = time.monotonic()
        self.model.train()
        order = epoch_order(self.train.shard_sizes(), seed=self.config.seed, epoch=position.epoch)
        plan = batches(order, self.config.batch_size)
        rest = plan[position.batch :]
        for batch in progress(stream(self.train, rest, self.collate), f"epoch {position.epoch + 1}", len(rest)):
            position = self._trained(batch, position)
            if time.monotonic() - saved > self.config.loop.save_seconds:
                save(position)
                saved = time.monotonic()
        terms = {term: value / len(plan) for term, value in position.sums.items()}
        metrics = rank_split(self.model, self.select, self.collate, self.device).metrics()
        position = self._judge(replace(position, epoch=position.epoch + 1, batch=0, sums={}), metrics)
        log.write(position, terms, metrics, self.optimizer.param_groups[0]["lr"], time.monotonic() - started)
        # Last: what a killed run logged after it is written again.
        save(position)
        return position

    def _trained(self, batch: Batch, position: Position) -> Position:
        """Where training stands after one more batch; one without queries has nothing to teach."""
        sums = dict(position.sums)
        if len(batch.owner):
            for term, value in self._step(batch.to(self.device), position).items():
                sums[term] = sums.get(term, 0.0) + value
            position = replace(position, step=position.step + 1)
        return replace(position, batch=position.batch + 1, sums=sums)

    def _step(self, batch: Batch, position: Position) -> dict[str, float]:
        seed = (self.config.seed << 32) + position.step
        torch.manual_seed(seed)
        rng = torch.Generator().manual_seed(seed)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")
        with autocast:
            text = self.model.encode_text(batch.words, batch.word_mask)
            video = self.model.encode_video(batch.frames, batch.frame_mask, batch.clips)
            scores = self.model.training_scores(text, video, batch.owner)
            step = Step(batch, text, video, scores, position.epoch, rng)
            terms: dict[str, Tensor] = {}
            for objective in self.objectives.values():
                assert isinstance(objective, Objective)
                terms |= objective.terms(self.model, step)
            loss = torch.stack(list(terms.values())).sum()
        if not math.isfinite(loss.item()):
            values = {name: term.item() for name, term in terms.items()}
            raise PrvrError(
                f"step {position.step}: the loss is {loss.item()}, of {values}; what was saved is of before"
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return {"loss": loss.item(), **{name: term.item() for name, term in terms.items()}}

    def _judge(self, position: Position, metrics: Mapping[str, float]) -> Position:
        """Save the model where it is the best so far; say when to stop."""
        if position.best is None or metrics["SumR"] > position.best["SumR"]:
            save_model(self.run, self.model, {**self.about, "epoch": position.epoch})
            return replace(position, best_epoch=position.epoch, best=dict(metrics), bad=0)
        bad = position.bad + 1
        return replace(position, bad=bad, stopped=bad > self.config.loop.patience)


class _Log:
    """``log.jsonl``, a line an epoch, and the same in TensorBoard. What a killed run wrote after its last state goes."""

    def __init__(self, run: Path, epoch: int) -> None:
        self.path = run / "log.jsonl"
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        write_text(self.path, "".join(f"{line}\n" for line in lines[:epoch]))
        self.epoch = epoch
        self.run = run

    def __enter__(self) -> "_Log":
        from torch.utils.tensorboard import SummaryWriter

        self.board = SummaryWriter(str(self.run / "tensorboard"), purge_step=self.epoch + 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.board.close()

    def write(
        self, position: Position, terms: Mapping[str, float], metrics: Mapping[str, float], lr: float, seconds: float
    ) -> None:
        line = {
            "epoch": position.epoch,
            "step": position.step,
            "lr": lr,
            "terms": dict(terms),
            "metrics": dict(metrics),
            "seconds": round(seconds, 3),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in {
            **{f"loss/{k}": v for k, v in terms.items()},
            **{f"recall/{k}": v for k, v in metrics.items()},
        }.items():
            self.board.add_scalar(name, value, position.epoch)
        _log.info(
            "epoch %d: loss %.4f, SumR %.1f, R@1 %.1f (best SumR %.1f, epoch %d), %.0f s",
            position.epoch, terms["loss"], metrics["SumR"], metrics["R@1"],
            (position.best or metrics)["SumR"], position.best_epoch, seconds,
        )  # fmt: skip
