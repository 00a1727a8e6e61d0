"""What a process is told and what it tells: light types, so that a command starts quickly and hands the work on."""

from dataclasses import dataclass
from pathlib import Path

from prvr.extract.recipes import Channel, Recipe
from prvr.extract.weights import Weights


@dataclass(frozen=True)
class Plan:
    """One recipe's part in a job: which weights (one for each of its channels) fill which store."""

    recipe: Recipe
    weights: tuple[Weights, ...]
    store: Path

    @property
    def channels(self) -> tuple[tuple[Channel, Weights], ...]:
        """Each channel with its weights."""
        return tuple(zip(self.recipe.channels, self.weights, strict=True))


@dataclass(frozen=True)
class Job:
    """All that a process needs to know; can be sent to another process.

    Args:
        stream: ``video``, ``text`` or ``subtitles``.
        plans: what is made of every source.
        device: as torch names it, or ``auto``.
        decoder: by name, or ``auto``.
        dtype: of the stored features.
        precision: the networks compute in: ``float32``, ``bfloat16``, ``float16``, or ``auto``.
        compiled: whether networks go through ``torch.compile``.
        batch_size: rows that a network computes together; None for the recipe's own.
        threads: of a network, in one process.
        readers: threads of a process that decode; None for one, or one a core before a GPU.
        skip_failed: leave out what failed before.
    """

    stream: str
    plans: tuple[Plan, ...]
    device: str = "auto"
    decoder: str = "auto"
    dtype: str = "float32"
    precision: str = "auto"
    compiled: bool = False
    batch_size: int | None = None
    threads: int = 1
    readers: int | None = None
    skip_failed: bool = False


@dataclass(frozen=True)
class Report:
    """What became of one source: ``extracted``, ``skipped`` or ``failed``, and why. ``source``: its name."""

    id: str
    source: str
    status: str
    error: str = ""
