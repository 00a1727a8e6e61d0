"""ICE, Inter Correlation Enhancement: moments and queries that are alike although they belong to different videos.

Junlong Ren, Gangjian Zhang, Yu Hu, Jian Shu, Hui Xiong, Hao Wang: Enhanced Partially Relevant Video Retrieval through
Inter- and Intra-Sample Analysis with Coherence Prediction. arXiv:2504.19637, section 3.3, equation 4 (8 in v1); the
weight lambda_3 is v1's. No code was published.

Of all moments and queries of a batch, a pair of different videos is taken for a match where each is the other's most
similar, and their cosine exceeds the threshold. These n_c pairs are aligned like a batch of their own.

What the papers leave open, and how it is read here:
  - "a mini-batch with n video-text pairs": V videos with all their Q queries, so V C moments against Q texts;
  - of several that are equally similar, the first is the most similar one;
  - in the batch of n_c pairs, each query has its one moment, and those of all other pairs are negatives, of whatever
    video they are;
  - how the losses are weighted: see ``_contrast.py``;
  - MS-SL, which has no moment branch of this kind: its 32 moments, before they are pooled to proposals. The paper adds
    ICE to MS-SL and does not say. On any model, the moments are those that its clip branch compares with sentences.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError
from prvr.train.interface import Objective, Step, VideoTextModel
from prvr.train.objectives import _codes
from prvr.train.objectives._contrast import Contrast


@dataclass(frozen=True)
class Options:
    """Settings of ICE; the defaults are the published ones.

    Args:
        weight: lambda_3 of equation 13 of v1.
        threshold: beta_t; a pair's cosine must exceed it. -1 keeps every pair that is mutually the most similar.
        contrast: of the pairs.

    Raises:
        ConfigurationError: a value out of its range.
    """

    weight: float = 0.1
    threshold: float = 0.4
    contrast: Contrast = field(default_factory=Contrast)

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ConfigurationError(f"ice: weight is {self.weight}, but must be finite and not negative")
        if not -1 <= self.threshold <= 1:
            raise ConfigurationError(f"ice: threshold is {self.threshold}, but a cosine is in [-1, 1]")


class Ice(Objective):
    """Term ``ice``; the arguments are those of Options."""

    def __init__(self, *, weight: float, threshold: float, contrast: Contrast) -> None:
        super().__init__()
        self.weight = weight
        self.threshold = threshold
        self.contrast = contrast

    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """One weighted scalar; 0 where fewer than two pairs are found."""
        moments = _codes.moments(step.video)
        videos, clips = moments.shape[:2]
        moments, sentences = moments.flatten(0, 1), step.text.sentence
        with torch.no_grad():  # choosing needs no graph, and the chosen are few
            similarity = functional.normalize(sentences, dim=-1) @ functional.normalize(moments, dim=-1).T
            video = torch.arange(videos, device=moments.device).repeat_interleave(clips)
            similarity.masked_fill_(step.owner[:, None] == video, -1)
            queries, chosen = correlated(similarity, self.threshold)
        return {"ice": self.weight * self.contrast.of_pairs(sentences[queries], moments[chosen], step)}


def build(options: Options, model: VideoTextModel) -> Ice:
    """ICE; it owns no parameters.

    Raises:
        ConfigurationError: a model without moments.
    """
    _codes.require("ice", "moments", model, "its pairs are of moments and queries")
    return Ice(weight=options.weight, threshold=options.threshold, contrast=options.contrast)


def correlated(similarity: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Equation 4 (8 in v1): rows [N] and columns [N] of ``similarity`` [Q, M] that are each other's largest, above the
    threshold."""
    column, row = similarity.argmax(1), similarity.argmax(0)
    mutual = row[column] == torch.arange(len(similarity), device=similarity.device)
    largest = similarity.gather(1, column[:, None]).squeeze(1)
    rows = (mutual & (largest > threshold)).nonzero().squeeze(1)
    return rows, column[rows]
