"""The types that models, objectives, the loop and evaluation share.

Letters: ``V`` videos, ``Q`` queries, ``F`` frames kept, ``C`` clips, ``W`` words, ``E`` input width, ``D`` hidden width.
Masks are bool, True = real.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from prvr.datasets.batch import Batch


@dataclass(frozen=True)
class TextCode:
    """Q encoded queries: ``words`` [Q, W, D] with ``mask`` [Q, W], and ``sentence`` [Q, D]."""

    words: Tensor
    mask: Tensor
    sentence: Tensor


@dataclass(frozen=True)
class VideoCode:
    """V encoded videos; None for what a model does not have. A model may subclass it.

    Args:
        moments: [V, C, D].
        frames: [V, F, D] with ``frame_mask`` [V, F].
        global_: [V, D].
    """

    shared: ClassVar[frozenset[str]] = frozenset()
    """Names of fields of a subclass that are the model's and not [V, …]."""

    moments: Tensor | None
    frames: Tensor | None
    global_: Tensor | None
    frame_mask: Tensor | None


@dataclass(frozen=True)
class Scores:
    """Similarity of Q queries and V videos: per branch a cosine [Q, V], and the weight of each branch in the fused score."""

    branches: Mapping[str, Tensor]
    weights: Mapping[str, float]

    @property
    def fused(self) -> Tensor:
        """Weighted sum of the branches, [Q, V]: what videos are ranked by."""
        return torch.stack([self.weights[name] * score for name, score in self.branches.items()]).sum(0)


@dataclass(frozen=True)
class TrainingBranch:
    """One branch's similarities in training: ``cosine`` and unnormalised ``dot``, both [Q, V],
    or both [Q, Q] where column j stands for query j's own video as query j sees it (``paired``)."""

    cosine: Tensor
    dot: Tensor
    paired: bool = False


class VideoTextModel(nn.Module, ABC):
    """A retriever. Beside its class, a model's file has ``Options`` (a frozen dataclass, ``--set <model>.<option>=…``)
    and ``build(options, *, frame_width, word_width) -> VideoTextModel``."""

    default_objectives: Mapping[str, Mapping[str, Any]]
    """Objective name to settings: what the model's paper trains it with."""
    gives: frozenset[str]
    """What its video codes have, of ``moments``, ``frames``, ``global_`` and, where it subclasses them, what else: an objective
    refuses a model that does not give what its equations need."""
    gallery_batch: int = 200
    """Videos that are encoded together in evaluation: the released number, as where padding matters scores depend on it."""
    padding_matters: str = ""
    """Why a score depends on the length that its video is padded to; empty where it does not."""

    @abstractmethod
    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]."""

    @abstractmethod
    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> VideoCode:
        """``frames`` [V, F, E], ``mask`` [V, F], ``clips`` [V, C, E]."""

    @abstractmethod
    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """Every query against every video, for ranking."""

    @abstractmethod
    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """Per branch, what its losses are computed of. ``owner`` [Q]: the row of each query's video."""


@dataclass(frozen=True)
class Step:
    """All that an objective may see of one training step.

    Args:
        batch: what this process has read: all of the step, or one rank's part of it.
        text, video: codes of all queries and videos of the step, on whatever rank they were encoded.
        scores: of these, by branch.
        epoch: from 0.
        rng: a CPU generator, at the same place on every rank.
        gathered: how this rank's codes became those of all; None for a process alone.
    """

    batch: Batch
    text: TextCode
    video: VideoCode
    scores: Mapping[str, TrainingBranch]
    epoch: int
    rng: torch.Generator
    gathered: "Gathered | None" = None

    @property
    def owner(self) -> Tensor:
        """[Q], the row of each query's video among all videos of the step."""
        return self.batch.owner if self.gathered is None else self.gathered.owner

    def own(self, of_all: Tensor) -> Tensor:
        """This rank's videos' rows of a tensor [V, …] that is of all videos of the step."""
        return of_all if self.gathered is None else of_all[self.gathered.videos]

    def gather(self, video: VideoCode) -> VideoCode:
        """The codes of all videos of the step, of those that each rank has encoded."""
        return video if self.gathered is None else self.gathered.gather(video)


@dataclass(frozen=True)
class Gathered:
    """A step that several ranks share: ``owner`` [Q] of all, which ``videos`` are this rank's, and how codes are gathered."""

    owner: Tensor
    videos: slice
    gather: Callable[[VideoCode], VideoCode]


class Objective(nn.Module, ABC):
    """A part of the loss; may own parameters. Beside its class, an objective's file has ``Options`` and
    ``build(options, model) -> Objective``."""

    @abstractmethod
    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """Named scalars, weighted as they enter the sum."""

    ranks: bool = False
    """Whether it has a part in ranking: then it overrides one of the two methods below, and its parameters belong to the
    chosen model."""

    def encode_text(self, model: VideoTextModel, text: TextCode, words: Tensor, mask: Tensor) -> TextCode:
        """What it adds to the model's code of ``words`` [Q, W, Ew] with ``mask`` [Q, W], in a subclass of ``TextCode``."""
        return text

    def replace_branch(self, model: VideoTextModel, text: TextCode, video: VideoCode) -> Mapping[str, TrainingBranch]:
        """Branches, [Q, V], that take the place of the model's own of the same names: before the losses, and in ranking."""
        return {}

    def forward(self, model: VideoTextModel, step: Step) -> Tensor:
        """The sum of the terms, a scalar; 0 of an objective that only ranks."""
        return torch.stack([step.text.sentence.new_zeros(()), *self.terms(model, step).values()]).sum()
