"""A run: from configuration and shards to a trained model, and from a run's folder back to its model."""

import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prvr.datasets.device import pick_device
from prvr.datasets.index import Index
from prvr.datasets.stream import Collate, ShardReader
from prvr.manifests.errors import ConfigurationError, MissingInput, UnknownName
from prvr.manifests.files import read_json, write_json, write_text
from prvr.manifests.settings import build
from prvr.train import models, objectives
from prvr.train.checkpoint import load_model, read_about
from prvr.train.config import RunConfig
from prvr.train.evaluate import Ranking, rank_split
from prvr.train.interface import Objective, VideoTextModel
from prvr.train.loop import Trainer
from prvr.train.metrics import chance
from prvr.train.optim import OPTIMISERS, decay_groups
from prvr.train.ranks import join
from prvr.train.retriever import retriever

_IDENTITY = ("backbone", "recipe_digest", "weights_sha256", "dim")
_STREAMS = ("video", "text")
UNKNOWN = "unknown"
"""Stands for each fact of features that an adopted model does not tell."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """What a finished training says."""

    epochs: int
    selected_on: str
    best_epoch: int
    metrics: Mapping[str, float]
    coverage: str


def make_model(config: RunConfig, *, frame_width: int, word_width: int) -> VideoTextModel:
    """The base model of a configuration, initialised from its seed; raises UnknownName, ConfigurationError."""
    module = models.load(config.base)
    options = build(module.Options, config.modules.get(config.base, {}), where=config.base)
    torch.manual_seed(config.seed)
    model: VideoTextModel = module.build(options, frame_width=frame_width, word_width=word_width)
    return model


def make_objectives(config: RunConfig, model: VideoTextModel) -> dict[str, Objective]:
    """The objectives of the model's paper and those added, by name; raises UnknownName, ConfigurationError."""
    made: dict[str, Objective] = {}
    for name in (*model.default_objectives, *config.added):
        module = objectives.load(name)
        settings = {**model.default_objectives.get(name, {}), **config.modules.get(name, {})}
        made[name] = module.build(build(module.Options, settings, where=name), model)
    for name in config.modules:
        if name != config.base and name not in made:
            raise UnknownName("table of settings", name, [config.base, *made])
    return made


def make_retriever(config: RunConfig, *, frame_width: int, word_width: int) -> VideoTextModel:
    """What a run ranks with: its model, and the objectives that have a part in ranking. Raises as the two above."""
    model = make_model(config, frame_width=frame_width, word_width=word_width)
    return retriever(model, make_objectives(config, model))


def train(
    config: RunConfig, shards: Path | str, run: Path, *, device: str, allow_overlap: bool, overwrite: bool
) -> Trained:
    """Train to the end, or go on where a run stopped; under torchrun, as one of its ranks.

    Raises:
        ConfigurationError: a split without shards, a video in train and in the reported split, a run of another
            configuration or of other shards in ``run``.
        PrvrError: as ``Trainer.fit``.
    """
    with ShardReader(shards, "train") as training, ShardReader(shards, selection_split(config, shards)) as selecting:
        split = selecting.index.split
        overlap = sorted(set(training.index.video_ids) & set(selecting.index.video_ids))
        if overlap and not allow_overlap:
            raise ConfigurationError(
                f"{len(overlap)} videos stand in train and in {split}, the first {overlap[0]!r}; "
                "--allow-overlap trains all the same"
            )
        if not training.index.queries or not selecting.index.queries:
            raise MissingInput(f"{shards}: a split without queries cannot be trained or selected on")
        world, target = join(device)
        _check_precision(config.precision, target)
        if config.threads:
            torch.set_num_threads(config.threads)
        index = training.index
        same_features(features_of(index), selecting.index, f"{shards}, split train")
        model = make_model(config, frame_width=index.frame_width, word_width=index.word_width)
        made = make_objectives(config, model)
        about = {
            "config": config.to_tables(),
            "dataset": index.dataset,
            "subset": index.subset,
            "features": features_of(index),
            "inputs": {"train": index.inputs, split: selecting.index.inputs},
            "selected_on": split,
            "overlap": len(overlap),
        }
        if world.first:
            if overwrite and run.exists():
                shutil.rmtree(run)
            _claim(run, config, about)
        world.wait()
        model.to(target)
        for objective in made.values():
            objective.to(target)
        per_epoch = math.ceil(math.ceil(len(training) / config.batch_size) / config.loop.accumulate)
        optimizer = OPTIMISERS[config.optim.name](
            decay_groups(torch.nn.ModuleList([model, *made.values()]), config.optim.weight_decay),
            lr=config.lr,
            warmup=config.optim.warmup,
            total_steps=per_epoch * config.epochs,
        )
        trainer = Trainer(
            run=run, config=config, model=model, objectives=made, optimizer=optimizer,
            train=training, select=selecting, device=target, about=about, check_leaks=not allow_overlap, world=world,
        )  # fmt: skip
        position = trainer.fit()
    metrics = dict(position.best or {})
    if world.first:
        record(run, split, {"t2v": metrics}, selecting.index, about)
    return Trained(position.epoch, split, position.best_epoch, metrics, coverage(selecting.index))


def evaluate(run: Path, shards: Path | str, split: str, *, device: str) -> tuple[Ranking, dict[str, Any]]:
    """Rank a split with a run's chosen model; the result is recorded in the run's ``metrics.json`` and returned.

    Raises:
        MissingInput: no run, or no shards.
        ConfigurationError: shards of other features than the run was trained on.
    """
    about = read_about(run)
    config = RunConfig.read(run / "config.toml")
    with ShardReader(shards, split) as reader:
        if not reader.index.queries:
            raise MissingInput(f"{shards}: split {split} has no queries to rank; it is a gallery to be searched")
        same_features(about["features"], reader.index, str(run))
        model = make_retriever(config, frame_width=reader.index.frame_width, word_width=reader.index.word_width)
        load_model(run, model)
        target = pick_device(device)
        _check_precision(config.precision, target)
        collate = Collate(normalise=config.data.normalise, max_words=config.data.max_words)
        ranking = rank_split(model.to(target), reader, collate, target)
        result = record(run, split, ranking.report(), reader.index, about)
    return ranking, result


def selection_split(config: RunConfig, shards: Path | str) -> str:
    """The split that the epoch is chosen on; raises MissingInput where it has no shards."""
    if config.select_on:
        return config.select_on
    return "dev" if Index.exists(shards, "dev") else "test"


def _check_precision(precision: str, device: torch.device) -> None:
    if precision == "bf16" and device.type == "cpu":
        raise ConfigurationError("--precision bf16 is for a GPU; on a CPU take fp32")


def record(run: Path, split: str, metrics: Mapping[str, Any], index: Index, about: Mapping[str, Any]) -> dict[str, Any]:
    """Put one split's ``metrics`` (``t2v``, and what else was measured) into ``metrics.json`` and write ``card.md`` anew."""
    path = run / "metrics.json"
    results = read_json(path) if path.is_file() else {}
    videos, queries = len(index.video_ids), index.queries
    results[split] = {
        "split": split,
        "subset": index.subset,
        **metrics,
        "chance": chance(videos),
        "videos": videos,
        "queries": queries,
        "missing_videos": len(index.missing),
        "missing_queries": index.missing_queries,
        "coverage": coverage(index),
        "selected_on": about["selected_on"],
    }
    write_json(path, results)
    write_text(run / "card.md", card(about, results))
    result: dict[str, Any] = results[split]
    return result


def coverage(index: Index) -> str:
    """Of how much of its split a score speaks: videos without features are missing, and their queries with them."""
    videos, queries = len(index.video_ids), index.queries
    whole = f"{videos + len(index.missing)} videos and {queries + index.missing_queries} queries"
    if not index.missing:
        return f"all {whole}"
    return f"{videos} videos and {queries} queries of {whole}"


def _claim(run: Path, config: RunConfig, about: Mapping[str, Any]) -> None:
    """Mark a folder as this run's, or see that it is."""
    mark = {"config": about["config"], "inputs": about["inputs"]}
    path = run / "state" / "run.json"
    if path.is_file():
        theirs = read_json(path)
        if theirs != mark:
            what = next(key for key in mark if theirs.get(key) != mark[key])
            raise ConfigurationError(
                f"{run}: begun with another {what}; give the same, or another --out, or --overwrite to start again"
            )
    elif run.exists() and any(run.iterdir()):
        raise ConfigurationError(f"{run}: not empty, and not a run of prvr-train; give another --out")
    write_json(path, mark)
    config.write(run / "config.toml")


def features_of(index: Index) -> dict[str, Any]:
    """What shards are made of, as a model remembers it."""
    text = [dict(index.text_features)] if index.text_features else []
    return {"video": [dict(spec) for spec in index.video_features], "text": text, "pooling": index.pooling}


def same_features(ours: Mapping[str, Any], index: Index, owner: str) -> None:
    """Hold a split's shards against the features of ``owner``; of those whose recipe is unknown, the width alone.

    Raises:
        ConfigurationError: other features.
    """
    theirs = features_of(index)
    if ours["pooling"] != theirs["pooling"]:
        raise ConfigurationError(
            f"{owner} has {ours['pooling']} pooling, the shards of {index.split} {theirs['pooling']}"
        )
    for stream in _STREAMS:
        mine, other = ours[stream], theirs[stream]
        widths = sum(spec["dim"] for spec in mine), sum(spec["dim"] for spec in other)
        if widths[0] != widths[1]:
            raise ConfigurationError(
                f"{owner} has {stream} features {widths[0]} wide, the shards of {index.split} {widths[1]}"
            )
        if any(spec["recipe_digest"] == UNKNOWN for spec in mine):
            continue
        for key in _IDENTITY:
            values = [spec[key] for spec in mine], [spec[key] for spec in other]
            if values[0] != values[1]:
                raise ConfigurationError(
                    f"{owner} has {stream} features of {key} {values[0]}, the shards of {index.split} of {values[1]}"
                )


def card(about: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> str:
    """A run in Markdown: what it was made from, and how it scores on each split that was ranked."""
    config, features = about["config"], about["features"]
    specs = [spec for stream in _STREAMS for spec in features[stream]]
    subset = f", {about['subset']}" if about["subset"] else ""
    lines = [f"# {config['model']} on {about['dataset']}{subset}", ""]
    lines += [
        f"- {spec['stream']} features: {spec['dim']} wide, of an unknown recipe"
        if spec["recipe_digest"] == UNKNOWN
        else f"- {spec['stream']} features: {spec['recipe']}, weights {spec['weights']} (sha256 {spec['weights_sha256'][:12]})"
        for spec in specs
    ]
    if source := about.get("adopted"):
        lines.append(f"- adopted from its authors' {source['file']} (sha256 {source['sha256'][:12]})")
    lines += [f"- epoch chosen on split {about['selected_on']}; seed {config['seed']}", ""]
    lines += [
        "| split | R@1 | R@5 | R@10 | R@100 | SumR | coverage |",
        "|---|---|---|---|---|---|---|",
    ]
    for split, result in results.items():
        for name, row in ((split, result["t2v"]), (f"{split}, chance", result["chance"])):
            numbers = " | ".join(f"{value:.1f}" for value in row.values())
            lines.append(f"| {name} | {numbers} | {result['coverage']} |")
    return "\n".join(lines) + "\n"
