"""The ranking losses of MS-SL: a triplet loss and InfoNCE on every branch, in the form of its code, and in that of papers.

Jianfeng Dong, Xianke Chen, Minsong Zhang, Xun Yang, Shujie Chen, Xirong Li, Xun Wang: Partially Relevant Video
Retrieval. ACM Multimedia 2022, doi:10.1145/3503161.3547976. Equations 8 (triplet), 9 (InfoNCE) and 10 (their sum).
Junlong Ren et al., arXiv:2504.19637v1, equations 5 and 6: the same two, but for one denominator.

A branch scores queries against videos, [Q, V], or queries against the videos of queries, [Q, Q] (``paired``).

The form ``released`` differs from MS-SL's paper in (as the released code computes it):
  - triplet, video to text of an unpaired branch: the mean over the video's queries is compared with one negative; it
    alone becomes the hardest from ``hard_from_epoch`` on, the others are then drawn from the ``hard_pool`` hardest;
  - InfoNCE is of exponentiated dot products without a temperature, not of cosines; for an unpaired branch, all queries
    of a video are summed inside the logarithm of video to text;
  - a paired branch knows one positive a row, so other queries of the same video count as negatives, and its InfoNCE has
    one denominator over row and column together, where the positive stands twice.

Differs from the released code in: where there is nothing to contrast (one video, one query, a video without a query),
the loss is constant, and that code fails. Random draws are the same numbers in the same order.

The form ``paper`` is what equations 8 and 9 say, one formula for every branch: both losses are the mean over the n pairs
of a query and its video. A pair's two hinges have a negative query of its video and a negative video of its query, drawn
evenly before ``hard_from_epoch`` and the most similar after; a pair's two logarithms have its own S above, and below S
and those of all negative queries of its video, or of all negative videos of its query. Other queries of the same video
are no negatives and stand in neither. As far as equation 9 leaves it open:
  - it writes S, a cosine, where the works it cites for InfoNCE have exp(S / temperature). A cosine can be negative, and
    has no logarithm then, so S is read as exp(S); a temperature is not in it;
  - the hardest negative is one, of several equally similar ones any.
In a paired branch, the columns of the query's own video are no negatives, and others count as often as they stand there.

The form ``ren`` is what equations 5 and 6 of v1 of Ren et al. say: as ``paper``, but the denominator is over all texts
of the batch, other queries of the same video included. Their later version writes neither equation and cites prior work.
With one query a video, both forms are equal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Objective, Step, TrainingBranch, VideoTextModel

FORMS = ("released", "paper", "ren")


@dataclass(frozen=True)
class Options:
    """Settings of the ranking losses; the defaults are those of MS-SL's code.

    Args:
        form: whose equations.
        margin: of the triplet loss (0.1 on TVR).
        hard_from_epoch: the first epoch, counted from 0, with hard negatives.
        hard_pool: how many of the hardest a hard negative of the form ``released`` is drawn from; others take the hardest.
        triplet: weight of the triplet loss.
        nce: weight of InfoNCE, for each branch of the model.

    Raises:
        ConfigurationError: a value out of its range.
    """

    form: str = "released"
    margin: float = 0.2
    hard_from_epoch: int = 20
    hard_pool: int = 20
    triplet: float = 1.0
    nce: Mapping[str, float] = field(default_factory=lambda: {"clip": 0.02, "frame": 0.04})

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise UnknownName("form of ranking", self.form, FORMS)
        if self.hard_pool < 1:
            raise ConfigurationError(f"ranking: hard_pool is {self.hard_pool}, but must be at least 1")
        for name, value in {"margin": self.margin, "triplet": self.triplet, **self.nce}.items():
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"ranking: {name} is {value}, but must be finite and not negative")


class Ranking(Objective):
    """Terms ``<branch>_nce`` and ``<branch>_triplet``; the arguments are those of Options."""

    def __init__(
        self,
        *,
        form: str,
        margin: float,
        hard_from_epoch: int,
        hard_pool: int,
        triplet: float,
        nce: Mapping[str, float],
    ) -> None:
        super().__init__()
        self.form = form
        self.margin = margin
        self.hard_from_epoch = hard_from_epoch
        self.hard_pool = hard_pool
        self.triplet = triplet
        self.nce = dict(nce)

    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """Two weighted scalars for each branch; their sum is equation 10, and equation 2 of RAL.

        Raises:
            ConfigurationError: ``nce`` names other branches than the model has.
        """
        if self.nce.keys() != step.scores.keys():
            wanted, present = sorted(self.nce), sorted(step.scores)
            raise ConfigurationError(f"ranking.nce has weights for {wanted}, but the model's branches are {present}")
        losses = self._released if self.form == "released" else self._of_pairs
        terms = {}
        for name, branch in step.scores.items():
            nce, triplet = losses(branch, step)
            terms[f"{name}_nce"] = self.nce[name] * nce
            terms[f"{name}_triplet"] = self.triplet * triplet
        return terms

    def _released(self, branch: TrainingBranch, step: Step) -> tuple[Tensor, Tensor]:
        hard = step.epoch >= self.hard_from_epoch
        pool = self.hard_pool if hard else None
        cosine, margin, rng = branch.cosine, self.margin, step.rng
        if branch.paired:
            own = _diagonal(branch)
            triplet = text_to_video(cosine, own, margin=margin, pool=pool, rng=rng)
            triplet = triplet + text_to_video(cosine.T, own, margin=margin, pool=pool, rng=rng)
            return paired_nce(branch.dot), triplet
        triplet = video_to_text(cosine, step.owner, margin=margin, hardest=hard, rng=rng)
        triplet = triplet + text_to_video(cosine, step.owner, margin=margin, pool=pool, rng=rng)
        return unpaired_nce(branch.dot, step.owner), triplet

    def _of_pairs(self, branch: TrainingBranch, step: Step) -> tuple[Tensor, Tensor]:
        cosine = branch.cosine
        positive, columns = step.owner, torch.arange(cosine.shape[1], device=cosine.device)
        if branch.paired:
            positive, columns = columns, step.owner
        own = step.owner[:, None] == columns
        hardest = step.epoch >= self.hard_from_epoch
        triplet = pair_triplet(cosine, positive, own, margin=self.margin, hardest=hardest, rng=step.rng)
        return pair_nce(cosine, positive, own, all_texts=self.form == "ren"), triplet


def build(options: Options, model: VideoTextModel) -> Ranking:
    """The ranking losses; they own no parameters and serve any model."""
    return Ranking(
        form=options.form,
        margin=options.margin,
        hard_from_epoch=options.hard_from_epoch,
        hard_pool=options.hard_pool,
        triplet=options.triplet,
        nce=options.nce,
    )


def text_to_video(cosine: Tensor, positive: Tensor, *, margin: float, pool: int | None, rng: torch.Generator) -> Tensor:
    """Triplet loss of the rows of ``cosine`` [N, M]: one negative each, drawn from the ``pool`` hardest, or from all. Half of
    equation 8.

    Args:
        cosine: [N, M].
        positive: [N], each row's positive column; every other one is a negative.
        margin: of the hinge.
        pool: None for all.
        rng: a CPU generator; one call of ``randint`` for N numbers.
    """
    rows, columns = cosine.shape
    if columns < 2:
        return cosine.new_zeros(())
    positive = positive[:, None]
    ranked = cosine.detach().scatter(1, positive, math.inf).argsort(dim=1, descending=True)  # rank 0 is the positive
    last = columns if pool is None else min(1 + pool, columns)
    rank = torch.randint(1, last, (rows,), generator=rng).to(cosine.device)
    negative = ranked.gather(1, rank[:, None])
    return functional.relu(margin + cosine.gather(1, negative) - cosine.gather(1, positive)).mean()


def video_to_text(cosine: Tensor, owner: Tensor, *, margin: float, hardest: bool, rng: torch.Generator) -> Tensor:
    """Triplet loss of the videos of ``cosine`` [Q, V]: the mean over a video's own queries against one other query.
    The other half of equation 8, as released.

    Args:
        cosine: [Q, V].
        owner: [Q], each query's video.
        margin: of the hinge.
        hardest: the negative is the highest of all, and otherwise a random one.
        rng: a CPU generator; one call of ``randint`` for each video, as its numbers of negatives differ.
    """
    queries = len(cosine)
    owned = _owned(cosine, owner)
    counts = owned.sum(0)
    positive = (cosine * owned).sum(0) / counts.clamp_min(1)
    ranked = cosine.masked_fill(owned, -math.inf).sort(dim=0, descending=True).values
    rank = torch.zeros_like(counts)
    if not hardest:
        negatives = [queries - own if own else 0 for own in counts.tolist()]
        draws = [int(torch.randint(0, n, (1,), generator=rng)) if n else 0 for n in negatives]
        rank = torch.tensor(draws, device=cosine.device)
    # A video that owns every query meets -inf here, and its hinge is 0.
    negative = ranked.gather(0, rank[None]).squeeze(0)
    return (functional.relu(margin + negative - positive) * (counts > 0)).mean()


def unpaired_nce(dot: Tensor, owner: Tensor) -> Tensor:
    """InfoNCE of ``dot`` [Q, V], over the videos and over the queries; ``owner`` [Q] is each query's video. Equation 9, as
    released, and equation 8 of AMDNet."""
    owned = _owned(dot, owner)
    text_to_video = dot.logsumexp(1) - dot.gather(1, owner[:, None]).squeeze(1)
    # A video without a query keeps its whole column as positives: its term is 0, and not -inf - inf.
    positives = dot.masked_fill(~owned & owned.any(0), -math.inf)
    video_to_text = dot.logsumexp(0) - positives.logsumexp(0)
    return text_to_video.mean() + video_to_text.mean()


def paired_nce(dot: Tensor) -> Tensor:
    """InfoNCE of ``dot`` [Q, Q] whose positives are the diagonal, with one denominator over row and column together.
    Equation 9, as released."""
    return (torch.cat([dot, dot.T], dim=1).logsumexp(1) - dot.diagonal()).mean()


def pair_triplet(
    cosine: Tensor, positive: Tensor, own: Tensor, *, margin: float, hardest: bool, rng: torch.Generator
) -> Tensor:
    """Equation 8, and equation 5 of v1 of Ren et al.: the mean over the pairs of each query and its positive column, of hinges
    that have one negative each.

    Args:
        cosine: [Q, M].
        positive: [Q], column of each query's positive.
        own: [Q, M], which column is of the query's own video: all others are negatives.
        margin: of the hinges.
        hardest: the negative is the highest, and otherwise any.
        rng: a CPU generator; unless ``hardest``, Q numbers for the columns' negatives, then Q for the rows'.
    """
    of_pair = cosine.gather(1, positive[:, None]).squeeze(1)
    negatives = cosine.masked_fill(own, -math.inf)
    rows = torch.arange(len(cosine), device=cosine.device)
    query = _negative(negatives.T, positive, hardest, rng)
    video = _negative(negatives, rows, hardest, rng)
    # Where there is no negative stands -inf, and the hinge is 0.
    return (functional.relu(margin + query - of_pair) + functional.relu(margin + video - of_pair)).mean()


def pair_nce(cosine: Tensor, positive: Tensor, own: Tensor, *, all_texts: bool) -> Tensor:
    """Equation 9, of exp(S), the mean over the pairs of each query and its positive column.

    Args:
        cosine: [Q, M].
        positive: [Q], column of each query's positive.
        own: [Q, M], which column is of the query's own video: all others are negatives.
        all_texts: other queries of the same video stand in the denominator (equation 6 of v1 of Ren et al.).
    """
    of_pair = cosine.gather(1, positive[:, None]).squeeze(1)
    # The lowest number and not -inf: where there is no negative, the sum has a gradient, which is 0.
    negatives = cosine.masked_fill(own, torch.finfo(cosine.dtype).min)
    others = negatives.logsumexp(0)[positive]
    queries = cosine.logsumexp(0)[positive] if all_texts else torch.logaddexp(of_pair, others)
    videos = torch.logaddexp(of_pair, negatives.logsumexp(1))
    return (queries - of_pair + videos - of_pair).mean()


def _negative(negatives: Tensor, rows: Tensor, hardest: bool, rng: torch.Generator) -> Tensor:
    """[N], of each row of ``negatives`` [R, M] that ``rows`` [N] names, the highest, or any that is not -inf."""
    if hardest:
        return negatives.max(1).values[rows]
    ranked = negatives.sort(dim=1, descending=True).values
    counts = (ranked > -math.inf).sum(1)[rows]
    rank = (torch.rand(len(rows), generator=rng, dtype=torch.float64).to(counts.device) * counts).long()
    return ranked[rows, rank]


def _owned(scores: Tensor, owner: Tensor) -> Tensor:
    """[Q, V] bool: this query is of this video."""
    return owner[:, None] == torch.arange(scores.shape[1], device=scores.device)


def _diagonal(branch: TrainingBranch) -> Tensor:
    return torch.arange(len(branch.cosine), device=branch.cosine.device)
