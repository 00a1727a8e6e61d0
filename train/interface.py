"""The types that models, objectives, the loop and evaluation share.

Letters: ``V`` videos, ``Q`` queries, ``F`` frames kept, ``C`` clips, ``W`` words, ``E`` input width, ``D`` hidden width.
Masks are bool, True = real.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    """All that an objective may see of one training step. ``epoch`` counts from 0; ``rng`` is a CPU generator."""

    batch: Batch
    text: TextCode
    video: VideoCode
    scores: Mapping[str, TrainingBranch]
    epoch: int
    rng: torch.Generator


class Objective(nn.Module, ABC):
    """A part of the loss; may own parameters. Beside its class, an objective's file has ``Options`` and
    ``build(options, model) -> Objective``."""

    @abstractmethod
    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """Named scalars, weighted as they enter the sum."""

    def forward(self, model: VideoTextModel, step: Step) -> Tensor:
        """The sum of the terms: a scalar."""
        return torch.stack(list(self.terms(model, step).values())).sum()
