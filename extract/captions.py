"""The operator for captions: those of one video are encoded together, so that their numbers depend on nothing else."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from prvr.datasets.device import pick_device
from prvr.datasets.store import Features
from prvr.extract.backbones import TextBackbone
from prvr.extract.job import Job, Report
from prvr.extract.loading import make
from prvr.extract.outputs import Commits, open_output
from prvr.extract.sources import Captions, Source
from prvr.manifests.errors import PrvrError


@dataclass
class _Sentences:
    """A text backbone as the maker of a store's rows."""

    encode: TextBackbone
    options: Mapping[str, Any]
    batch_size: None = None
    precision: str = "float32"

    @property
    def dim(self) -> int:
        return self.encode.dim

    @property
    def sha256(self) -> str:
        return self.encode.sha256


class CaptionExtractor:
    """Features of captions; those of one video are encoded together."""

    def __init__(self, job: Job) -> None:
        device = pick_device(job.device)
        self._outputs = [
            open_output(job, plan, tuple(_Sentences(*make(job.stream, *pair, device)) for pair in plan.channels))
            for plan in job.plans
        ]
        self._commits = Commits(self._outputs)

    def run(self, sources: Iterable[Source]) -> Iterator[Report]:
        """See Extractor."""
        for source in sources:
            assert isinstance(source, Captions)
            marks = {query.query_id: query.fingerprint() for query in source.video.queries}
            lacking = [output for output in self._outputs if output.lacks(marks)]
            if any(source.id in output.failed for output in self._outputs):
                yield Report(source.id, source.name, "skipped", "failed before")
            elif not lacking:
                yield Report(source.id, source.name, "skipped")
            else:
                try:
                    made = [self._encoded(source, marks, output.makers[0].encode) for output in lacking]
                except PrvrError as error:
                    yield self._commits.failed(source, "", error)
                    continue
                for output, features in zip(lacking, made, strict=True):
                    output.pending += features
                self._commits.add(source)
            if self._commits.due:
                yield from self._commits.commit()
        yield from self._commits.commit()

    def _encoded(self, source: Captions, marks: dict[str, str], backbone: TextBackbone) -> list[Features]:
        queries = source.video.queries
        made = []
        for query, words in zip(queries, backbone([query.text for query in queries]), strict=True):
            rows = words.float().cpu().numpy()
            if not len(rows):
                raise PrvrError(f"query {query.query_id!r}: no word of {query.text!r} is left")
            made.append(Features(query.query_id, marks[query.query_id], rows, np.arange(len(rows), dtype=np.float64)))
        return made
