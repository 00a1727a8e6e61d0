"""Losses that keep apart what belongs to one video: its queries, their clips, and its proposed spans.

Four terms, each with a weight, 0 being without:
  - query diversity. Yuting Wang, Jinpeng Wang, Bin Chen, Ziyun Zeng, Shu-Tao Xia: GMMFormer. AAAI 2024,
    doi:10.1609/aaai.v38i6.28389 (``query_form = "joint"``). Yuting Wang, Jinpeng Wang, Bin Chen, Tao Dai, Ruisheng Luo,
    Shu-Tao Xia: GMMFormer v2. arXiv:2405.13824 (``"pairwise"``);
  - optimal matching, of GMMFormer v2: a video's queries are matched with different clips;
  - moment diversity and moment relevance. Peipei Song, Long Zhang, Long Lan, Weidong Chen, Dan Guo, Xun Yang, Meng
    Wang: AMDNet. IEEE Transactions on Multimedia 2025, arXiv:2504.10920, equations 9 and 10.

The GMMFormers' papers were not at hand and AMDNet's text has lost its formulas: all are as the released code computes
them, which the papers' words do not contradict. Relevance has a margin that the paper gives two values of, one for each
data set; they are lost, and the released code has one.

Differs from the released code in: a batch without a video of two queries has no matching to lose, and that code fails;
a video's queries need not stand together in the batch; logarithms of sums of exponentials cannot overflow.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Objective, Step, VideoCode, VideoTextModel
from prvr.train.models.amdnet import AmdNetVideo
from prvr.train.objectives import _codes

FORMS = ("joint", "pairwise")


@dataclass(frozen=True)
class Options:
    """Settings of the diversity losses; the defaults are GMMFormer's for ActivityNet Captions.

    Args:
        query: weight of query diversity.
        query_form: ``joint`` has one logarithm over all other queries of the video (GMMFormer), ``pairwise`` one for each
            pair, weighed by its similarity (v2).
        query_margin: added to the cosine of two queries.
        query_scale: times it, inside the exponential.
        query_focus: ``pairwise`` alone: exponent of a pair's weight 1 + cosine.
        matching: weight of optimal matching.
        spans: weight of moment diversity.
        span_concentration: of moment diversity: what a span's mask, summing to 1, shall have for the sum of its squares.
        relevance: weight of moment relevance.
        relevance_margin: by how much the best span shall be more similar to a query than the whole video.

    Raises:
        ConfigurationError: a value out of its range, or no term at all.
    """

    query: float = 0.015
    query_form: str = "joint"
    query_margin: float = 0.2
    query_scale: float = 32.0
    query_focus: float = 1.0
    matching: float = 0.0
    spans: float = 0.0
    span_concentration: float = 0.15
    relevance: float = 0.0
    relevance_margin: float = 0.02

    def __post_init__(self) -> None:
        if self.query_form not in FORMS:
            raise UnknownName("query_form of diversity", self.query_form, FORMS)
        for name in self.__dataclass_fields__.keys() - {"query_form"}:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(
                    f"diversity: {name} is {getattr(self, name)}, but must be finite and not negative"
                )
        if not (self.query or self.matching or self.spans or self.relevance):
            raise ConfigurationError("diversity: query, matching, spans and relevance are all 0: nothing to compute")


class Diversity(Objective):
    """The terms that it is given: by name, what a step loses by each, weighted."""

    def __init__(self, parts: Mapping[str, Callable[[Step], Tensor]]) -> None:
        super().__init__()
        self.parts = dict(parts)

    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """A weighted scalar for each part."""
        return {name: part(step) for name, part in self.parts.items()}


def build(options: Options, model: VideoTextModel) -> Diversity:
    """Those of ``query_diversity``, ``matching``, ``span_diversity`` and ``relevance`` that have a weight; no parameters.

    Raises:
        ConfigurationError: a model whose video codes lack what a term needs.
    """
    parts: dict[str, Callable[[Step], Tensor]] = {}
    if options.query:
        focus = options.query_focus if options.query_form == "pairwise" else None
        parts["query_diversity"] = lambda step: (
            options.query
            * query_diversity(
                step.text.sentence,
                step.owner,
                margin=options.query_margin,
                scale=options.query_scale,
                focus=focus,
            )
        )
    if options.matching:
        _codes.require("diversity", "moments", model, "its matching is of queries and clips")
        parts["matching"] = lambda step: (
            options.matching * optimal_matching(step.text.sentence, _codes.moments(step.video), step.owner)
        )
    if options.spans:
        _codes.require("diversity", "spans", model, "its moment diversity is about the spans that a model proposes")
        parts["span_diversity"] = lambda step: (
            options.spans * span_diversity(_spans(step.video).spans, concentration=options.span_concentration)
        )
    if options.relevance:
        _codes.require("diversity", "spans", model, "its relevance is about the spans that a model proposes")
        parts["relevance"] = lambda step: (
            options.relevance
            * relevance(
                step.text.sentence,
                _spans(step.video).span_features[step.owner],
                _spans(step.video).global_[step.owner],
                margin=options.relevance_margin,
            )
        )
    return Diversity(parts)


def query_diversity(sentences: Tensor, owner: Tensor, *, margin: float, scale: float, focus: float | None) -> Tensor:
    """How near queries of the same video come to each other: a scalar.

    With s_ij = ``scale`` (cosine_ij + ``margin``) and j over the other queries of i's video, the mean over the queries of
    log(1 + sum_j exp s_ij), or, with a ``focus``, of sum_j (1 + cosine_ij)^focus log(1 + exp s_ij).

    Args:
        sentences: [Q, D].
        owner: [Q], each query's video.
        margin, scale: of s.
        focus: None for the first form.
    """
    unit = functional.normalize(sentences, dim=-1)
    cosine = unit @ unit.T
    same = (owner[:, None] == owner).fill_diagonal_(False)
    logits = scale * (cosine + margin)
    if focus is None:
        nothing = logits.new_zeros(len(logits), 1)
        return torch.cat([nothing, logits.masked_fill(~same, -math.inf)], dim=1).logsumexp(1).mean()
    weights = (1 + cosine).clamp_min(0) ** focus
    return (weights * functional.softplus(logits) * same).sum() / len(sentences)


def optimal_matching(sentences: Tensor, moments: Tensor, owner: Tensor) -> Tensor:
    """1 - the mean cosine of queries and clips, matched within each video that has several queries: a scalar.

    Each query takes a clip of its own, so that the sum of cosines is the largest (the Hungarian method); of more queries
    than clips, some take none. 0 where no video has two queries.

    Args:
        sentences: [Q, D].
        moments: [V, C, D].
        owner: [Q], each query's video.
    """
    queries, clips = _matched(sentences.detach(), moments.detach(), owner)
    if not len(queries):
        return sentences.new_zeros(())
    return 1 - functional.cosine_similarity(sentences[queries], moments[owner[queries], clips]).mean()


def _matched(sentences: Tensor, moments: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """Query and clip of each match, [N] and [N]."""
    unit = functional.normalize(sentences, dim=-1)
    cosines = torch.einsum("qd,qcd->qc", unit, functional.normalize(moments, dim=-1)[owner]).float().cpu()
    videos = owner.cpu()
    queries, clips = [videos.new_empty(0)], [videos.new_empty(0)]
    for video in sorted(set(videos.tolist())):
        own = (videos == video).nonzero().squeeze(1)
        if len(own) > 1:
            rows, columns = linear_sum_assignment(cosines[own].numpy(), maximize=True)
            queries.append(own[torch.from_numpy(rows)])
            clips.append(torch.from_numpy(columns))
    return torch.cat(queries).to(owner.device), torch.cat(clips).to(owner.device)


def span_diversity(spans: Tensor, *, concentration: float) -> Tensor:
    """How much the spans of a video overlap, or spread: the squared norm of ``concentration`` I - P P^T, averaged
    (equation 9 of AMDNet).

    Args:
        spans: masks [V, K, C], of which P is each row divided by its sum.
        concentration: that the diagonal of P P^T shall have.
    """
    shares = spans / spans.sum(-1, keepdim=True)
    wanted = concentration * torch.eye(spans.shape[1], device=spans.device)
    return (wanted - shares @ shares.mT).square().sum((1, 2)).mean()


def relevance(sentences: Tensor, features: Tensor, whole: Tensor, *, margin: float) -> Tensor:
    """By how much a query's best span fails to be more similar to it than its whole video, plus ``margin``: a scalar
    (equation 10 of AMDNet).

    Args:
        sentences: [Q, D].
        features: [Q, K, D], of the spans of each query's video.
        whole: [Q, D], each query's video.
        margin: of the hinge.
    """
    best = functional.cosine_similarity(sentences[:, None], features, dim=-1).max(-1).values
    return functional.relu(margin + functional.cosine_similarity(sentences, whole, dim=-1) - best).mean()


def _spans(video: VideoCode) -> AmdNetVideo:
    if not isinstance(video, AmdNetVideo):
        raise TypeError(f"the model's gives names spans, but its video codes are a {type(video).__name__}")
    return video
