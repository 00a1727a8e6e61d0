"""What a process is told and what it tells: light types, so that a command starts quickly and hands the work on."""

from dataclasses import dataclass
from pathlib import Path

from prvr.extract.recipes import Recipe
from prvr.extract.sources import Captions, VideoFile
from prvr.extract.weights import Weights

type Source = VideoFile | Captions


@dataclass(frozen=True)
class Plan:
    """One backbone's part in a job: which recipe and weights fill which store."""

    recipe: Recipe
    weights: Weights
    store: Path


@dataclass(frozen=True)
class Job:
    """All that a process needs to know; can be sent to another process. ``stream`` is ``video`` or ``text``."""

    stream: str
    plans: tuple[Plan, ...]
    device: str
    decoder: str
    dtype: str
    batch_size: int
    threads: int
    skip_failed: bool


@dataclass(frozen=True)
class Report:
    """What became of one source: ``extracted``, ``skipped`` or ``failed``, and why."""

    source: str
    status: str
    error: str = ""
