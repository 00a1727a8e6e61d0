"""The stores that a process fills: what is finished and waits, and when it is committed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from prvr.datasets.ledger import Failure, Ledger
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.extract.job import Job, Plan, Report
from prvr.extract.partial import Partial
from prvr.extract.sources import Source
from prvr.manifests.errors import PrvrError
from prvr.manifests.files import digest_of

PART_SOURCES, PART_SECONDS, PART_BYTES = 32, 20.0, 256 << 20
"""A part is committed when so much waits, whichever is first."""


class Maker(Protocol):
    """What makes the rows of one channel of a recipe."""

    @property
    def dim(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def precision(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass
class Output[M: Maker]:
    """One store being filled.

    Args:
        plan: which store, by which recipe.
        makers: of the rows, one for each channel of the recipe.
        store, ledger, partial: where finished, failed and unfinished sources go.
        failed: ids that are left out.
        pending: finished and not committed.
    """

    plan: Plan
    makers: tuple[M, ...]
    store: FeatureStore
    ledger: Ledger
    partial: Partial
    failed: frozenset[str]
    pending: list[Features] = field(default_factory=list)

    def lacks(self, fingerprints: Mapping[str, str]) -> bool:
        """Whether an id is absent, or was made from another source than the one of this fingerprint."""
        return any(id_ not in self.store or self.store.fingerprint(id_) != mark for id_, mark in fingerprints.items())


def open_output[M: Maker](job: Job, plan: Plan, makers: tuple[M, ...]) -> Output[M]:
    """Open or make a plan's store; raises ConfigurationError where it was made in another way."""
    settings = plan.recipe.settings(job.stream, [maker.options for maker in makers])
    spec = FeatureSpec(
        stream=job.stream,
        backbone=plan.recipe.backbone,
        recipe=plan.recipe.name,
        recipe_digest=digest_of(settings),
        weights=" + ".join(weights.name for weights in plan.weights),
        weights_sha256=makers[0].sha256 if len(makers) == 1 else digest_of([maker.sha256 for maker in makers]),
        dim=sum(maker.dim for maker in makers),
        dtype=job.dtype,
        compute_threads=job.threads,
        versions=_versions(),
        batch_size="+".join(str(maker.batch_size or "any") for maker in makers),
        precision="+".join(maker.precision for maker in makers),
        settings=settings,
    )
    with _disk(plan):
        store = FeatureStore.create(plan.store, spec)
    ledger = Ledger(plan.store)
    failed = frozenset(ledger.failures()) if job.skip_failed else frozenset()
    return Output(plan, makers, store, ledger, Partial(plan.store, spec), failed)


class Commits:
    """What is finished in all outputs, committed together when enough of it waits."""

    def __init__[M: Maker](self, outputs: Sequence[Output[M]]) -> None:
        self.outputs = outputs
        self._reports: list[Report] = []
        self._since = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to commit."""
        size = sum(features.frames.nbytes for output in self.outputs for features in output.pending)
        waited = time.monotonic() - self._since
        return len(self._reports) >= PART_SOURCES or size >= PART_BYTES or waited >= PART_SECONDS

    def add(self, source: Source) -> None:
        """All features of a source are pending now."""
        self._reports.append(Report(source.id, source.name, "extracted"))

    def commit(self) -> list[Report]:
        """Commit what is pending, and give its reports; raises PrvrError where the disk does not take it."""
        for output in self.outputs:
            with _disk(output.plan):
                output.store.commit(output.pending)
                for features in output.pending:
                    output.partial.remove(features.id, len(output.plan.recipe.channels))
            output.pending = []
        settled, self._reports = self._reports, []
        self._since = time.monotonic()
        return settled

    def failed(self, source: Source, fingerprint: str, error: Exception) -> Report:
        """Record a failure in every ledger."""
        reason = " ".join(str(error).split()) or type(error).__name__
        for output in self.outputs:
            with _disk(output.plan):
                output.ledger.record(Failure(source.id, source.name, fingerprint, reason))
                output.partial.remove(source.id, len(output.plan.recipe.channels))
        return Report(source.id, source.name, "failed", reason)


@contextmanager
def _disk(plan: Plan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PrvrError(
            f"{plan.store} cannot be written ({error.strerror or error}); what was committed is kept, "
            "and the same command continues"
        ) from error


def _versions() -> dict[str, str]:
    found = {}
    for package in ("prvr", "torch", "torchvision", "transformers", "av", "decord", "torchcodec", "zarr"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
