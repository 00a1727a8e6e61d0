"""Many machines: Ray Data hands the sources to actors, one for each device, which have the operator and write to the stores.

Features do not travel: reports come back. An actor that dies is started again and its sources are tried again; delivery is
at least once, and an id that comes twice is harmless. Needs the extra ``prvr[ray]``, and an output folder that all machines
see.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prvr.extract.job import Job, Report
from prvr.extract.sources import Source
from prvr.manifests.errors import ConfigurationError, PrvrError

if TYPE_CHECKING:
    from prvr.extract.run import Extractor

BATCH = 32
"""Sources that an actor is handed together, and commits before it is handed more; fewer where there are few."""
OBJECT_STORE_BYTES = 256 << 20
"""Of a Ray that is started here: only paths and reports pass through it."""


def extract(job: Job, sources: Sequence[Source], workers: int) -> Iterator[Report]:
    """Reports as they settle, one for every source.

    Raises:
        ConfigurationError: Ray is not installed.
        PrvrError: nothing more can be committed, or an actor died again and again.
    """
    try:
        import ray
    except ImportError:
        raise ConfigurationError("--engine ray: Ray is not installed; pip install 'prvr[ray]'") from None

    started = not ray.is_initialized()
    if started:
        # Joins the cluster that RAY_ADDRESS names, else starts one on this machine.
        own: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES, "num_cpus": workers * job.threads}
        elsewhere = os.environ.get("RAY_ADDRESS")
        ray.init(
            include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **({} if elsewhere else own)
        )
    try:
        yield from _reports(job, sources, workers)
    finally:
        if started:
            ray.shutdown()


def _reports(job: Job, sources: Sequence[Source], workers: int) -> Iterator[Report]:
    import ray
    from ray.exceptions import RayError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = 0
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = 1 if job.device.startswith("cuda") or (job.device == "auto" and resources.get("GPU")) else 0
    size = max(1, min(BATCH, -(-len(sources) // workers)))
    rows = ray.data.from_items([{"source": source} for source in sources], override_num_blocks=-(-len(sources) // size))
    done = rows.map_batches(
        _Operator,
        fn_constructor_args=(job,),
        batch_size=size,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=job.threads,
        num_gpus=gpus,
        max_restarts=3,
        max_task_retries=3,
    )
    try:
        for row in done.iter_rows():
            if row["stop"]:
                raise PrvrError(row["error"])
            yield Report(row["id"], row["source"], row["status"], row["error"])
    except RayError as error:
        raise PrvrError(f"Ray gave up ({type(error).__name__}); what was committed is kept") from error


class _Operator:
    """The operator in an actor; made once, called with some sources at a time."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.extractor: Extractor | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        from prvr.extract.run import extractor

        try:
            if self.extractor is None:
                self.extractor = extractor(self.job)
            found = [asdict(report) | {"stop": False} for report in self.extractor.run(batch["source"])]
        except PrvrError as error:
            # An error of ours is not tried again: a full disk stays full.
            found = [asdict(Report("", "", "failed", str(error))) | {"stop": True}]
        return {key: [row[key] for row in found] for key in ("id", "source", "status", "error", "stop")}
