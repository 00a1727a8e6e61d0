"""The extraction operator: one process's work. Sources go in one at a time; reports come out once features are committed.

The same operator serves every engine. A part is committed after 32 sources, 30 seconds or 256 MiB, whichever is first.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from prvr.datasets.device import pick_device
from prvr.datasets.ledger import Failure, Ledger
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.extract import backbones
from prvr.extract.backbones import TextBackbone, VideoBackbone
from prvr.extract.decode import decode
from prvr.extract.job import Job, Plan, Report, Source
from prvr.extract.sources import Captions, VideoFile
from prvr.manifests.errors import PrvrError
from prvr.manifests.settings import build

PART_SOURCES, PART_SECONDS, PART_BYTES = 32, 30.0, 256 << 20


@dataclass
class _Output:
    """One store being filled: what is finished and not yet committed."""

    plan: Plan
    backbone: Any
    store: FeatureStore
    ledger: Ledger
    failed: frozenset[str]
    pending: list[Features] = field(default_factory=list)

    def lacks(self, id_: str, fingerprint: str) -> bool:
        return id_ not in self.store or self.store.fingerprint(id_) != fingerprint

    def commit(self) -> None:
        self.store.commit(self.pending)
        self.pending = []


class Extractor:
    """Opens the stores and loads the backbones of a job, and works off sources.

    Raises:
        ConfigurationError: weights that do not fit, or a store of another recipe.
    """

    def __init__(self, job: Job) -> None:
        # A feature's last bits depend on the number of threads, so it is part of the store's spec.
        torch.set_num_threads(job.threads)
        self.job = job
        self.device = pick_device(job.device)
        self.outputs = [self._output(plan) for plan in job.plans]
        self._waiting: list[Report] = []
        self._since = time.monotonic()

    def feed(self, source: Source) -> list[Report]:
        """Extract one source; gives the reports of what is settled by now."""
        settled = []
        try:
            report = self._video(source) if isinstance(source, VideoFile) else self._captions(source)
        except (PrvrError, OSError) as error:
            settled.append(self._failure(source, error))
        else:
            (self._waiting if report.status == "extracted" else settled).append(report)
        if self._due():
            settled += self.flush()
        return settled

    def flush(self) -> list[Report]:
        """Commit what is pending, and give its reports."""
        for output in self.outputs:
            output.commit()
        settled, self._waiting = self._waiting, []
        self._since = time.monotonic()
        return settled

    def _output(self, plan: Plan) -> _Output:
        job, stream = self.job, self.job.stream
        module = backbones.load(plan.recipe.backbone, stream)
        kind = module.VideoOptions if stream == "video" else module.TextOptions
        settings = plan.recipe.video if stream == "video" else plan.recipe.text
        options = build(kind, settings or {}, where=f"{plan.recipe.name}.{stream}")
        loader = module.load_video if stream == "video" else module.load_text
        backbone: VideoBackbone | TextBackbone = loader(plan.weights, options, self.device)
        spec = FeatureSpec(
            stream=stream,
            backbone=plan.recipe.backbone,
            recipe=plan.recipe.name,
            recipe_digest=plan.recipe.digest(stream),
            weights=plan.weights.name,
            weights_sha256=backbone.sha256,
            dim=backbone.dim,
            dtype=job.dtype,
            compute_threads=job.threads,
            versions=_versions(),
        )
        store, ledger = FeatureStore.create(plan.store, spec), Ledger(plan.store)
        failed = frozenset(ledger.failures()) if job.skip_failed else frozenset()
        return _Output(plan, backbone, store, ledger, failed)

    def _video(self, source: VideoFile) -> Report:
        if any(source.id in output.failed for output in self.outputs):
            return Report(str(source.path), "skipped", "failed before")
        fingerprint = source.fingerprint()
        lacking = [output for output in self.outputs if output.lacks(source.id, fingerprint)]
        if not lacking:
            return Report(str(source.path), "skipped")
        rows: list[list[np.ndarray]] = [[] for _ in lacking]
        times: list[list[np.ndarray]] = [[] for _ in lacking]
        samplings = [output.plan.recipe.sampling for output in lacking]
        for batch in decode(source.path, samplings, decoder=self.job.decoder, batch_size=self.job.batch_size):
            for number, output in enumerate(lacking):
                wanted = batch.wanted[number]
                if wanted.any():
                    rows[number].append(output.backbone(batch.frames[wanted]).float().cpu().numpy())
                    times[number].append(batch.seconds[wanted].numpy())
        for output, own_rows, own_times in zip(lacking, rows, times, strict=True):
            output.pending.append(Features(source.id, fingerprint, np.concatenate(own_rows), np.concatenate(own_times)))
        return Report(str(source.path), "extracted")

    def _captions(self, source: Captions) -> Report:
        queries = source.video.queries
        prints = {query.query_id: query.fingerprint() for query in queries}
        lacking = [out for out in self.outputs if any(out.lacks(id_, mark) for id_, mark in prints.items())]
        if not lacking:
            return Report(source.id, "skipped")
        for output in lacking:
            for query, words in zip(queries, output.backbone([query.text for query in queries]), strict=True):
                rows = words.float().cpu().numpy()
                if not len(rows):
                    raise PrvrError(f"query {query.query_id!r}: no word of {query.text!r} is left")
                positions = np.arange(len(rows), dtype=np.float64)
                output.pending.append(Features(query.query_id, prints[query.query_id], rows, positions))
        return Report(source.id, "extracted")

    def _failure(self, source: Source, error: Exception) -> Report:
        reason = " ".join(str(error).split()) or type(error).__name__
        path = str(source.path) if isinstance(source, VideoFile) else source.id
        mark = ""
        if isinstance(source, VideoFile) and source.path.is_file():
            mark = source.fingerprint()
        for output in self.outputs:
            output.ledger.record(Failure(source.id, path, mark, reason))
        return Report(path, "failed", reason)

    def _due(self) -> bool:
        size = sum(features.frames.nbytes for output in self.outputs for features in output.pending)
        return (
            len(self._waiting) >= PART_SOURCES or size >= PART_BYTES or time.monotonic() - self._since >= PART_SECONDS
        )


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("prvr", "torch", "torchvision", "transformers", "av", "decord", "zarr"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
