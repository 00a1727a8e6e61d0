"""From the words of a command to a job and its sources; everything that can be wrong is found before the work starts."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prvr.datasets.ledger import Ledger
from prvr.extract import backbones, recipes
from prvr.extract.decoders import check as check_decoder
from prvr.extract.find import Found, find
from prvr.extract.job import Job, Plan
from prvr.extract.recipes import Channel, Recipe
from prvr.extract.sources import Source
from prvr.extract.weights import Weights, resolve
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.manifests.settings import build
from prvr.manifests.split import Split

MOST_WORKERS = 8
VIDEOS_A_WORKER, CAPTIONED_A_WORKER = 4, 1000
"""Fewer sources than that are done before another process has loaded its libraries."""


def prepare(
    arguments: Sequence[str],
    backbone_names: Sequence[str],
    recipe_names: Sequence[str],
    *,
    weights: Sequence[str],
    out: Path,
    name: str | None,
    fps: float | None,
    device: str,
    decoder: str,
    dtype: str,
    precision: str,
    compiled: bool,
    batch_size: int | None,
    threads: int,
    readers: int | None,
    part: tuple[int, int],
    limit: int | None,
    id_from: str,
    frame_rate: float | None,
    subtitled: bool,
    skip_failed: bool,
    adapt: bool,
    settings: Mapping[str, Any],
) -> tuple[Job, Found, list[Source]]:
    """The job, what was found, and the part of it that is this process's.

    Raises:
        ConfigurationError: anything that keeps the work from starting.
    """
    for backbone in backbone_names:
        if backbone not in backbones.names():
            raise UnknownName("backbone", backbone, backbones.names())
    # A backbone's default recipe has the backbone's name.
    asked = [*backbone_names, *recipe_names]
    if len(set(asked)) < len(asked):
        raise ConfigurationError(f"named twice: {', '.join(asked)}")
    if name and len(asked) > 1:
        raise ConfigurationError("--name is for one backbone; several have a store each")
    check_decoder(decoder)
    chosen = [recipes.load(one, settings, over={} if fps is None else {"sampling": {"fps": fps}}) for one in asked]
    found = find(arguments, id_from=id_from, frame_rate=frame_rate, subtitled=subtitled)
    if found.stream != "video" and fps is not None:
        raise ConfigurationError("--fps is for videos; these sources are texts")
    given = _weights_by_channel(weights, chosen)
    if adapt and (found.stream != "text" or any(recipe.backbone != "roberta" for recipe in chosen)):
        raise ConfigurationError("--adapt tunes roberta on the captions of a split folder, and nothing else")
    plans = tuple(_plan(recipe, given, found, out, name, adapt=adapt) for recipe in chosen)
    job = Job(
        stream=found.stream,
        plans=plans,
        device=device,
        decoder=decoder,
        dtype=dtype,
        precision=precision,
        compiled=compiled,
        batch_size=batch_size,
        threads=threads,
        readers=readers,
        skip_failed=skip_failed,
    )
    index, parts = part
    sources: list[Source] = [*found.sources]
    return job, found, sources[index::parts][:limit]


def default_workers(job: Job, sources: int) -> int:
    """One process a core, where there is enough for each to do; one where a GPU will do the work."""
    if job.device.startswith("cuda") or (job.device == "auto" and Path("/proc/driver/nvidia/version").exists()):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    worth_starting = sources // (VIDEOS_A_WORKER if job.stream == "video" else CAPTIONED_A_WORKER)
    return max(1, min(MOST_WORKERS, cores, worth_starting))


def start_again(job: Job) -> None:
    """Delete the job's stores and ledgers, and what is kept of unfinished videos."""
    from prvr.extract.partial import remove_all

    for plan in job.plans:
        if plan.store.exists():
            shutil.rmtree(plan.store)
        Ledger(plan.store).path.unlink(missing_ok=True)
        remove_all(plan.store)


def adapted(job: Job, split: Path, settings: Mapping[str, Any]) -> Job:
    """The job with weights that are tuned on the training captions of ``split`` first, and kept beside the stores."""
    from prvr.extract.adapt import AdaptSettings, adapt

    sentences = [query.text for video in Split.read(split).videos.get("train", ()) for query in video.queries]
    plans = []
    for plan in job.plans:
        ((channel, weights),) = plan.channels
        own = {"prefix_space": (channel.text or {}).get("prefix_space", False), **settings.get("adapt", {})}
        out = plan.store.with_name(plan.store.name.removesuffix(".text.zarr").removesuffix(".zarr") + ".weights")
        path = adapt(weights, sentences, out, build(AdaptSettings, own, where="adapt"), job.device)
        plans.append(replace(plan, weights=(Weights(str(path), path, None),)))
    return replace(job, plans=tuple(plans))


def _plan(recipe: Recipe, given: Mapping[str, str], found: Found, out: Path, name: str | None, *, adapt: bool) -> Plan:
    if not recipe.serves(found.stream):
        raise ConfigurationError(f"recipe {recipe.name!r} makes no {found.stream} features")
    weights = tuple(resolve(_named(one, given), one.published) for one in recipe.channels)
    of_dataset = f"{found.dataset}." if found.dataset is not None else ""
    stem = name or f"{of_dataset}{recipe.name}{'-adapted' if adapt else ''}.{found.stream}"
    return Plan(recipe, weights, out / f"{stem.removesuffix('.zarr')}.zarr")


def _named(channel: Channel, given: Mapping[str, str]) -> str:
    name = given.get(channel.name, channel.weights)
    if not name:
        raise ConfigurationError(
            f"recipe {channel.name!r} has no weights that could be fetched; give --weights {channel.backbone}=PATH "
            f"(prvr-extract --list --recipe {channel.name} says which)"
        )
    return name


def _weights_by_channel(values: Sequence[str], chosen: Sequence[Recipe]) -> dict[str, str]:
    """What ``--weights`` gives for each channel, by the channel's name."""
    channels: list[Channel] = [channel for recipe in chosen for channel in recipe.channels]
    given: dict[str, str] = {}
    for value in values:
        owner, equals, rest = value.partition("=")
        names = [channel.name for channel in channels if owner in (channel.name, channel.backbone)]
        if equals and names:
            given |= dict.fromkeys(names, rest)
        elif len(channels) == 1:
            given[channels[0].name] = value
        else:
            raise ConfigurationError(f"--weights {value!r}: with several backbones write BACKBONE=VALUE")
    return given
