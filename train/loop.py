"""The training loop: one for every model and objective; it knows none by name.

Every random number of a step comes from (seed, step) alone, so a run that was killed and continued gives the weights
of one that was not. Under torchrun each rank runs this loop on its share of every batch, and the first one writes.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prvr.datasets.batch import Batch
from prvr.datasets.plan import batches, epoch_order, share
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.errors import PrvrError
from prvr.manifests.files import write_text
from prvr.manifests.progress import progress
from prvr.train.checkpoint import Position, load_state, save_model, save_state
from prvr.train.config import RunConfig
from prvr.train.evaluate import Ranking, rank_split
from prvr.train.interface import Objective, VideoTextModel
from prvr.train.leaks import same_videos
from prvr.train.metrics import at_chance
from prvr.train.ranks import ALONE, World
from prvr.train.retriever import retriever
from prvr.train.step import TrainingStep, parallel

_log = logging.getLogger(__name__)


class Trainer:
    """Trains one model on one split and chooses the epoch by another.

    Args:
        run: folder of the run; a state there is continued.
        about: what travels with the chosen model.
        check_leaks: whether videos of ``train`` and ``select`` are compared before the first step.
        world: of several processes, each with its own of everything here.
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
        check_leaks: bool = False,
        world: World = ALONE,
    ) -> None:
        self.run = run
        self.config = config
        self.retriever = retriever(model, objectives)
        self.modules = {"model": model, "objectives": nn.ModuleDict(objectives)}
        self.optimizer = optimizer
        self.train = train
        self.select = select
        self.device = device
        self.about = about
        self.check_leaks = check_leaks
        self.world = world
        self.collate = Collate(normalise=config.data.normalise, max_words=config.data.max_words)
        step = TrainingStep(retriever=self.retriever, base=model, objectives=objectives, world=world)
        self.step = step if world.size == 1 else parallel(step)

    def fit(self) -> Position:
        """Train to the end; gives the final position.

        Raises:
            PrvrError: a loss that is not a number; epochs whose scores are those of chance; videos of the reported split
                that are trained on.
        """
        position = load_state(self.run, self.modules, self.optimizer)
        self.world.wait()
        if position.step:
            _log.info("%s: continuing after epoch %d, batch %d", self.run, position.epoch, position.batch)
        elif self.check_leaks and self.world.first:
            self._refuse_leaks()
        save: Callable[[Position], None] = partial(save_state, self.run, self.modules, self.optimizer)
        if not self.world.first:
            save = _nothing
        with _Log(self.run, position.epoch) if self.world.first else nullcontext() as log:
            while position.epoch < self.config.epochs and not position.stopped:
                self._refuse_chance(position)
                position = self._epoch(position, log, save)
        self.world.wait()
        return position

    def _epoch(self, position: Position, log: "_Log | None", save: Callable[[Position], None]) -> Position:
        started = saved = time.monotonic()
        self.step.train()
        plan = self._plan(position.epoch)
        rest = [share(batch, rank=self.world.rank, world=self.world.size) for batch in plan[position.batch :]]
        for batch in progress(stream(self.train, rest, self.collate), f"epoch {position.epoch + 1}", len(rest)):
            first = position.batch - position.batch % self.config.loop.accumulate
            parts = min(self.config.loop.accumulate, len(plan) - first)
            position = self._batch(batch.to(self.device), position, position.batch - first, parts)
            if position.batch == first + parts and time.monotonic() - saved > self.config.loop.save_seconds:
                save(position)
                saved = time.monotonic()
        terms = {term: value / len(plan) for term, value in position.sums.items()}
        ranking = rank_split(self.retriever, self.select, self.collate, self.device, self.world)
        position = self._judge(replace(position, epoch=position.epoch + 1, batch=0, sums={}), ranking)
        if log:
            rate = self.optimizer.param_groups[0]["rate"]
            log.write(position, terms, ranking.metrics(), rate, time.monotonic() - started)
        # Last: what a killed run logged after it is written again.
        save(position)
        return position

    def _plan(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch; those without queries have nothing to teach."""
        order = epoch_order(self.train.shard_sizes(), seed=self.config.seed, epoch=epoch)
        plan = batches(order, self.config.batch_size)
        return [rows for rows in plan if any(self.train.member(row).queries for row in rows)]

    def _batch(self, batch: Batch, position: Position, part: int, parts: int) -> Position:
        """Where training stands after one more batch, the ``part``-th of the ``parts`` of an optimizer step."""
        last = part == parts - 1
        seed = (self.config.seed << 32) + position.step * self.config.loop.accumulate + part
        torch.manual_seed(seed + (self.world.rank << 24))  # ranks have other videos, and so other dropout
        rng = torch.Generator().manual_seed(seed)
        alone = last or not isinstance(self.step, DistributedDataParallel)
        with nullcontext() if alone else self.step.no_sync():  # type: ignore[operator]
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                terms: dict[str, Tensor] = self.step(batch, position.epoch, rng)
                loss = torch.stack(list(terms.values())).sum()
            values = {"loss": loss.item(), **{name: term.item() for name, term in terms.items()}}
            if not math.isfinite(values["loss"]):
                raise PrvrError(
                    f"step {position.step}: the loss is not a number: {values}; what was saved is of before"
                )
            (loss / parts).backward()  # type: ignore[no-untyped-call]
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        sums = {name: position.sums.get(name, 0.0) + value for name, value in values.items()}
        return replace(position, batch=position.batch + 1, step=position.step + last, sums=sums)

    def _judge(self, position: Position, ranking: Ranking) -> Position:
        """Save the model where it is the best so far; say when to stop."""
        metrics = ranking.metrics()
        learnt = position.learnt or not at_chance(ranking.ranks(), ranking.scores.shape[1])
        if position.best is None or metrics["SumR"] > position.best["SumR"]:
            if self.world.first:
                save_model(self.run, self.retriever, {**self.about, "epoch": position.epoch})
            return replace(position, best_epoch=position.epoch, best=metrics, bad=0, learnt=learnt)
        bad = position.bad + 1
        return replace(position, bad=bad, stopped=bad > self.config.loop.patience, learnt=learnt)

    def _refuse_chance(self, position: Position) -> None:
        limit = self.config.loop.chance_epochs
        if limit and position.epoch >= limit and not position.learnt and position.best:
            raise PrvrError(
                f"after {position.epoch} epochs the scores are still those of chance (best SumR "
                f"{position.best['SumR']:.1f}): do features and captions belong together, is the learning rate too "
                "high or the warm-up too short? --set loop.chance_epochs=0 trains on"
            )

    def _refuse_leaks(self) -> None:
        if pairs := same_videos(self.train, self.select):
            one, other = pairs[0]
            raise PrvrError(
                f"{len(pairs)} videos of {self.select.index.split} are in train under another name, the first "
                f"{other!r} as {one!r}: their features are the same; --allow-overlap trains all the same"
            )


def _nothing(_: Position) -> None:
    """What a rank that is not the first saves."""


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
