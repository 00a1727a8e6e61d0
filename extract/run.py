"""The extraction operator: one process's work. Sources go in, reports come out once features are committed. The same operator
serves every engine."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch

from prvr.extract.captions import CaptionExtractor
from prvr.extract.job import Job, Report
from prvr.extract.sources import Source
from prvr.extract.videos import VideoExtractor


class Extractor(Protocol):
    """One process's work on a job."""

    def run(self, sources: Iterable[Source]) -> Iterator[Report]:
        """Work the sources off; gives the report of each when its features are safe, or it has failed.

        Raises:
            PrvrError: nothing more can be committed (a full disk); what was committed is kept.
        """
        ...


def extractor(job: Job) -> Extractor:
    """Open the stores and load the backbones of a job.

    Raises:
        ConfigurationError: weights that do not fit, or a store of another recipe.
    """
    # A feature's last bits depend on the number of threads, so it is part of the store's spec.
    torch.set_num_threads(job.threads)
    return VideoExtractor(job) if job.stream == "video" else CaptionExtractor(job)
