"""Where the operator runs. An engine has ``extract(job, sources, workers) -> Iterator[Report]``; found by its name."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol, cast

from prvr.extract.job import Job, Report
from prvr.extract.sources import Source
from prvr.manifests import registry


class Engine(Protocol):
    """The shape of an engine's file."""

    def extract(self, job: Job, sources: Sequence[Source], workers: int) -> Iterator[Report]: ...


names = partial(registry.names, __name__)


def load(name: str) -> Engine:
    """The engine's module; raises UnknownName."""
    return cast(Engine, registry.load(__name__, name, kind="engine"))
