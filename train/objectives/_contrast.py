"""The two losses of Ren et al. (arXiv:2504.19637v1, equations 5 and 6), for pairs that ICE and IRM make themselves.

Forms and schedule are those that ``ranking`` has for the model's own branches: hinges of cosines with one negative each,
random before hard negatives begin and of the hardest after, and InfoNCE of unnormalised dot products without a
temperature, rows and columns apart.

The papers say "L^trip and L^nce" jointly, without a weight. Only equation 3 weighs them, with lambda_2 = 0.04 on the
InfoNCE of the moment branch. Pairs of this kind are its pairs, so that is the weight here as well: ``nce`` = 1 is the
other reading, under which InfoNCE, some log N, outweighs all else.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError
from prvr.train.interface import Step
from prvr.train.objectives.ranking import text_to_video, unpaired_nce


@dataclass(frozen=True)
class Contrast:
    """L^trip + ``nce`` L^nce, equations 5 and 6 of v1.

    Args:
        margin: of the hinges.
        nce: weight of InfoNCE.
        hard_from_epoch: the first epoch, counted from 0, with hard negatives.
        hard_pool: how many of the hardest a hard negative is drawn from.

    Raises:
        ConfigurationError: a value out of its range.
    """

    margin: float = 0.2
    nce: float = 0.04
    hard_from_epoch: int = 20
    hard_pool: int = 20

    def __post_init__(self) -> None:
        if self.hard_pool < 1:
            raise ConfigurationError(f"contrast: hard_pool is {self.hard_pool}, but must be at least 1")
        for name in ("margin", "nce"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(
                    f"contrast: {name} is {getattr(self, name)}, but must be finite and not negative"
                )

    def of_pairs(self, one: Tensor, other: Tensor, step: Step) -> Tensor:
        """``one[n]`` and ``other[n]``, [N, D], belong together, and to no other row. Fewer than two pairs lose nothing.

        Draws N numbers for the rows, then N for the columns, as ``ranking.text_to_video`` does.
        """
        if not len(one):
            return one.sum() + other.sum()  # 0, with a gradient
        own = torch.arange(len(one), device=one.device)
        pool = self.hard_pool if step.epoch >= self.hard_from_epoch else None
        cosine = functional.normalize(one, dim=-1) @ functional.normalize(other, dim=-1).T
        rows = text_to_video(cosine, own, margin=self.margin, pool=pool, rng=step.rng)
        columns = text_to_video(cosine.T, own, margin=self.margin, pool=pool, rng=step.rng)
        return rows + columns + self.nce * unpaired_nce(one @ other.T, own)

    def of_negatives(self, anchor: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        """``anchor`` [N, D] is nearer to ``positive`` [N, D] than to each of its own ``negatives`` [N, M, D].

        The hinges of an anchor are averaged, so that M does not weigh; InfoNCE has its M negatives in the denominator.
        """
        others = torch.cat([positive[:, None], negatives], dim=1)  # [N, 1 + M, D]
        dot = torch.einsum("nd,nmd->nm", anchor, others)
        cosine = torch.einsum("nd,nmd->nm", functional.normalize(anchor, dim=-1), functional.normalize(others, dim=-1))
        hinges = functional.relu(self.margin + cosine[:, 1:] - cosine[:, :1])
        return hinges.mean() + self.nce * (dot.logsumexp(1) - dot[:, 0]).mean()
