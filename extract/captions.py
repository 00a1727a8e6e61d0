"""The operator for captions and subtitles: those of one video are encoded together, so that their numbers depend on nothing
else."""

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
from prvr.extract.sources import Captions, Source, Subtitles
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
    """Features of captions or of subtitles; those of one video are encoded together."""

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
            assert isinstance(source, Captions | Subtitles)
            marks = source.marks()
            lacking = [output for output in self._outputs if output.lacks(marks)]
            if any(source.id in output.failed for output in self._outputs):
                yield Report(source.id, source.name, "skipped", "failed before")
            elif not lacking:
                yield Report(source.id, source.name, "skipped")
            else:
                try:
                    made = [_encoded(source, marks, output.makers[0].encode) for output in lacking]
                except PrvrError as error:
                    yield self._commits.failed(source, "", error)
                    continue
                for output, features in zip(lacking, made, strict=True):
                    output.pending += features
                self._commits.add(source)
            if self._commits.due:
                yield from self._commits.commit()
        yield from self._commits.commit()


def _encoded(source: Captions | Subtitles, marks: Mapping[str, str], backbone: TextBackbone) -> list[Features]:
    rows = [words.float().cpu().numpy() for words in backbone(source.texts)]
    if isinstance(source, Subtitles):
        # One id holds all lines; a row's time is the number of its line.
        lines = np.repeat(np.arange(len(rows), dtype=np.float64), [len(words) for words in rows])
        if not len(lines):
            raise PrvrError(f"{source.id}: no word of its subtitles is left")
        return [Features(source.id, marks[source.id], np.concatenate(rows), lines)]
    for query, words in zip(source.video.queries, rows, strict=True):
        if not len(words):
            raise PrvrError(f"query {query.query_id!r}: no word of {query.text!r} is left")
    return [
        Features(query_id, mark, words, np.arange(len(words), dtype=np.float64))
        for (query_id, mark), words in zip(marks.items(), rows, strict=True)
    ]
