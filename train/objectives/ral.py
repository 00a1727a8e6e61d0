"""RAL, Robust Alignment Learning: videos and queries as Gaussians, and words that count by their confidence.

Long Zhang, Peipei Song, Jianfeng Dong, Kun Li, Xun Yang: Enhancing Partially Relevant Video Retrieval with Robust Alignment
Learning. Findings of EMNLP 2025, section 3. Its parts:
  - MSRA. All queries of a video are its query support set (equation 5); multi-granularity aggregation (6, 7) of their words,
    and of the video's frames, gives each a Gaussian (3, 4). Terms ``ral_alignment`` (8) and ``ral_matching`` (10) of K
    proxies drawn from them (9). Training alone: see ``_gaussians.py``;
  - CSA. Each word is as similar to a video as to its nearest frame (11), and a query is the sum of its words, weighed by the
    confidence that a network has in them (12). In training and in ranking this takes the place of the base's score of
    frames (Figure 9), under its name, so that ``ranking`` goes on to weigh it: ``frame``, or ``video`` of dual-branch. On
    MS-SL, whose own frame branch is [Q, Q], it is [Q, V], and has the losses of its clip branch.

The variant ``released`` is what the authors' code computes on GMMFormer v2, and what it would on any base with words and
frames; the paper adds RAL to MS-SL, GMMFormer and GMMFormer v2. It differs from the paper in:
  - g (7) is not one: the mean is LayerNorm(x^g + sigmoid(FC(x^l))), scaled to length 1, and log sigma FC(x^g) + FC(x^l),
    with an attention each for x^l, of inner width D / 2. x^g has no FC; of a video it is the mean of directions, scaled to
    length 1. The number of parameters is equation 6's and 7's, to the last;
  - equation 10 has the mean over the proxies outside of the logarithm, dot products without a temperature, and a second
    direction, from video to text, with which it is averaged;
  - in equation 8, the mean of a distribution is that of its K proxies;
  - equation 12 has a softmax over the words. InfoNCE is of another score, with dot products, words that the network sees
    unnormalised, and nearest frames of its own;
  - a video of fewer than 128 frames is padded with zeros that take part in the maximum of 11: no word's cosine is below 0;
  - lambda_3 is 0.00025 and not 0.001 (lambda_4 is 0.004; appendix B finds 0.004 and 0.001 the best);
  - BertAdam, at the base's rates, where section 4.1 has Adam at 1e-4; the losses of GMMFormer v2 stay: see the presets.
Two of its quirks are plain bugs, and switches: ``pads`` and ``log_variance``.

What the paper leaves open, and how the variant ``paper`` reads it:
  - words have an encoder of their own, with the positions of the model's, as in the released code. Appendix A has the
    "original" encoders, but the 3.26M parameters that Table 6 adds to GMMFormer v2 are reached with this encoder alone;
  - sigma must be positive: the layer gives its logarithm;
  - equation 10 is of a video's text proxies, averaged, against sums over video proxies, from text to video alone; tau is
    not given, and is 0.07, as is usual since MoCo;
  - equation 12's confidence is not normalised, and S(q, v) is one score, for triplets, InfoNCE and ranking alike.

Each row of the ablations: Table 2 ``csa = false`` (words are then the model's own), ``alignment = 0`` with ``matching = 0``;
Table 3 ``alignment = 0``, ``matching = 0``, ``proxies`` 0 (without sampling), 2, 4, 6; Table 4 ``support = "query"``,
``aggregation = "local"``, ``"global"``; Figure 8c ``confidence = "equal"``.

Differs from the released code in: nothing that changes a score. The bias of the confidence network's last layer, which
cancels in the softmax, is not there. A video without a query has no part in MSRA, and that code fails. Proxies are drawn
after what ``ranking`` draws; there they are before. AMDNet is refused: it codes no frames, and a query as one vector.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Objective, Step, TextCode, TrainingBranch, VideoCode, VideoTextModel
from prvr.train.layers import PositionEmbedding, initialise
from prvr.train.models import _released, gmmformer_v2
from prvr.train.objectives import _codes
from prvr.train.objectives._gaussians import (
    GRAINS,
    CodeSets,
    Gaussians,
    PaperEstimator,
    ReleasedEstimator,
    divergence,
    from_standard,
    log_of_sums,
    mean_of_logs,
)
from prvr.train.objectives._set_to_set import Csa, RalText, frame_mask

VARIANTS = ("released", "paper")
WEIGHTS = {"released": {"alignment": 2.5e-4, "matching": 4e-3}, "paper": {"alignment": 1e-3, "matching": 4e-3}}
SUPPORTS = ("video", "query")
AGGREGATIONS = ("both", *GRAINS)
CONFIDENCES = ("learned", "equal")
BRANCHES = ("frame", "video")
"""What bases call their score of frames."""
RELEASED_ON = "gmmformer-v2"
"""The base that the authors released a model with."""


@dataclass(frozen=True)
class Options:
    """Settings of RAL; the defaults are the released ones.

    Args:
        variant: which reading of the paper.
        csa: whether it scores; without, the base does.
        confidence: of words: ``learned``, or ``equal`` for all of a query.
        alignment: lambda_3, weight of equation 8; None for the variant's.
        matching: lambda_4, weight of equation 10; None for the variant's. With both 0 there is no MSRA.
        proxies: K; 0 for the mean in their place.
        support: ``video`` for a text distribution of all queries of a video, ``query`` for one of each query alone.
        aggregation: ``both``, ``local`` or ``global`` features.
        temperature: tau of equation 10; of ``paper`` alone.
        pads: of ``released`` alone, a bug: MSRA's attention has no mask. It sees the codes of padded words, and zeros up to
            ``support_queries`` queries of the batch's longest and up to 128 frames, so that a loss depends on the batch.
        support_queries: of ``pads``: queries that a support set has place for (5 on TVR).
        log_variance: of ``released`` alone, a bug: the logarithm of the standard deviation is taken for that of the variance
            in equation 8's divergences from the standard normal, though not in that of text from video.
        initializer_range: standard deviation of the initial matrices.

    Raises:
        ConfigurationError: a value out of its range, or nothing to compute.
    """

    variant: str = "released"
    csa: bool = True
    confidence: str = "learned"
    alignment: float | None = None
    matching: float | None = None
    proxies: int = 6
    support: str = "video"
    aggregation: str = "both"
    temperature: float = 0.07
    pads: bool = True
    support_queries: int = 26
    log_variance: bool = True
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name, known in (
            ("variant", VARIANTS),
            ("confidence", CONFIDENCES),
            ("support", SUPPORTS),
            ("aggregation", AGGREGATIONS),
        ):
            if getattr(self, name) not in known:
                raise UnknownName(f"{name} of ral", getattr(self, name), known)
        for name, least in (("proxies", 0), ("support_queries", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"ral: {name} is {getattr(self, name)}, but must be at least {least}")
        for name, value in {**self.weights, "initializer_range": self.initializer_range}.items():
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"ral: {name} is {value}, but must be finite and not negative")
        if not 0 < self.temperature < math.inf:
            raise ConfigurationError(f"ral: temperature is {self.temperature}, but must be finite and above 0")
        if not self.csa and not any(self.weights.values()):
            raise ConfigurationError("ral: without csa, alignment and matching nothing is left; leave +ral out")

    @property
    def weights(self) -> dict[str, float]:
        """Of ``alignment`` and ``matching``."""
        given = {"alignment": self.alignment, "matching": self.matching}
        return WEIGHTS[self.variant] | {name: value for name, value in given.items() if value is not None}


class Msra(nn.Module):
    """Multimodal semantic robust alignment: equations 3 to 10.

    Args:
        text, video: from a set of codes to a Gaussian, of words and of frames.
        released: the variant.
        alignment, matching: weights.
        proxies: K; 0 for the mean in their place.
        together: one distribution for all queries of a video; else one for each.
        pads: attention sees padded words, and zeros as far as there is place; None for no others than the real.
        log_variance: see Options.
        temperature: of equation 10.
    """

    def __init__(
        self,
        *,
        text: nn.Module,
        video: nn.Module,
        released: bool,
        alignment: float,
        matching: float,
        proxies: int,
        together: bool,
        pads: "Places | None",
        log_variance: bool,
        temperature: float,
    ) -> None:
        super().__init__()
        self.text = text
        self.video = video
        self.released = released
        self.alignment = alignment
        self.matching = matching
        self.proxies = proxies
        self.together = together
        self.pads = pads
        self.log_variance = log_variance
        self.temperature = temperature

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Those that have a weight. Draws G K D numbers for the text, then V K D for the videos that have queries."""
        videos, owner = torch.unique(step.owner, return_inverse=True)
        text: Gaussians = self.text(self._words(step.text, owner, len(videos)))
        video: Gaussians = self.video(self._frames(step.video, videos))
        text_proxies, video_proxies = (one.proxies(self.proxies, step.rng) for one in (text, video))
        if self.together:
            owner = torch.arange(len(videos), device=owner.device)
        terms = {}
        if self.matching:
            if self.released:
                loss = mean_of_logs(text_proxies, video_proxies, owner)
            else:
                loss = log_of_sums(text_proxies, video_proxies, owner, temperature=self.temperature)
            terms["ral_matching"] = self.matching * loss
        if self.alignment:
            if self.released:
                text = Gaussians(text_proxies.mean(1), text.log_deviation)
                video = Gaussians(video_proxies.mean(1), video.log_deviation)
            own = Gaussians(video.mean[owner], video.log_deviation[owner])
            loss = divergence(text, own).mean() + sum(self._from_standard(one).mean() for one in (text, video))
            terms["ral_alignment"] = self.alignment * loss
        return terms

    def _from_standard(self, one: Gaussians) -> Tensor:
        half = 0.5 if self.released and self.log_variance else 1.0
        return from_standard(Gaussians(one.mean, half * one.log_deviation))

    def _words(self, text: TextCode, owner: Tensor, videos: int) -> CodeSets:
        """Equation 5: the queries of each video; or each query alone."""
        queries, longest = text.mask.shape
        if not self.together:
            owner, videos = torch.arange(queries, device=owner.device), queries
        own = isinstance(text, RalText)
        # Of the model's own codes, those of padded words mean nothing: they are zeros here.
        codes = text.own_words if isinstance(text, RalText) else text.words.masked_fill(~text.mask[..., None], 0)
        blanks = torch.zeros(videos, dtype=torch.int64, device=owner.device)
        if self.pads is None:
            return CodeSets(codes, text.mask, text.mask, owner, blanks)
        seen = torch.ones_like(text.mask) if own else text.mask
        full = longest * (self.pads.queries if self.together else 1)
        blanks = (full - blanks.index_add(0, owner, seen.sum(1))).clamp_min(0)
        return CodeSets(codes, text.mask, seen, owner, blanks)

    def _frames(self, video: VideoCode, videos: Tensor) -> CodeSets:
        codes, mask = _codes.frames(video)[videos], frame_mask(video)[videos]
        codes = codes.masked_fill(~mask[..., None], 0)
        blanks = torch.zeros_like(videos) if self.pads is None else (self.pads.frames - mask.sum(1)).clamp_min(0)
        return CodeSets(codes, mask, mask, torch.arange(len(videos), device=videos.device), blanks)


@dataclass(frozen=True)
class Places:
    """Up to how many ``queries`` and ``frames`` of a video the released code pads with zeros."""

    queries: int
    frames: int


class Ral(Objective):
    """Terms ``ral_matching`` and ``ral_alignment``, where there is ``msra``; and a branch, where there is ``csa``.

    Args:
        branch: the base's score of frames, which ``csa`` replaces.
        csa, msra: None for without.
    """

    def __init__(self, *, branch: str, csa: Csa | None, msra: Msra | None) -> None:
        super().__init__()
        self.branch = branch
        self.csa = csa
        self.msra = msra
        self.ranks = csa is not None

    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """What equation 13 adds to the loss of the base: weighted scalars, none where there is no MSRA.

        Raises:
            TypeError: ``step.text`` is not of this objective's ``encode_text``, though there is CSA.
        """
        if self.csa is not None:
            _own(step.text)
        return {} if self.msra is None else self.msra.terms(step)

    def encode_text(self, model: VideoTextModel, text: TextCode, words: Tensor, mask: Tensor) -> TextCode:
        """``text`` and, where there is CSA, what its encoder makes of ``words`` [Q, W, Ew]; positions are the model's."""
        return text if self.csa is None else self.csa.encode(text, words, _position("words", model))

    def replace_branch(self, model: VideoTextModel, text: TextCode, video: VideoCode) -> Mapping[str, TrainingBranch]:
        """The branch of frames, [Q, V], where there is CSA."""
        return {} if self.csa is None else {self.branch: self.csa.compare(_own(text), video)}


def build(options: Options, model: VideoTextModel) -> Ral:
    """RAL; it owns an encoder of words built as the model's, and the estimators of Gaussians and of confidence.

    Raises:
        ConfigurationError: a model without frames.
    """
    _codes.require("ral", "frames", model, "it compares words with frames")
    branch = next(name for name in BRANCHES if name in model.default_objectives["ranking"]["nce"])
    width, released = _codes.width(model), options.variant == "released"
    places = _position("frames", model).table.num_embeddings
    csa, msra = None, None
    if options.csa:
        predict = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1, bias=not released))
        csa = Csa(
            project=_anew(model.get_submodule("words.project")),
            attend=_anew(model.get_submodule("words.attend")),
            predict=predict if options.confidence == "learned" else None,
            released=released,
            places=places,
        )
    if any(options.weights.values()):
        grains = GRAINS if options.aggregation == "both" else (options.aggregation,)
        estimator = ReleasedEstimator if released else PaperEstimator
        msra = Msra(
            text=estimator(width=width, unit_mean=False, grains=grains),
            video=estimator(width=width, unit_mean=released, grains=grains),
            released=released,
            **options.weights,
            proxies=options.proxies,
            together=options.support == "video",
            pads=Places(options.support_queries, places) if released and options.pads else None,
            log_variance=options.log_variance,
            temperature=options.temperature,
        )
    ral = Ral(branch=branch, csa=csa, msra=msra)
    initialise(ral, options.initializer_range)
    return ral


def from_released(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The ``state_dict`` of the authors' RAL4GMMV2_Net: GMMFormer v2's part and RAL's under our names, to be loaded strictly.

    Raises:
        ConfigurationError: a key that RAL4GMMV2_Net does not have, or one that is missing.
    """
    names = _released.parameters({"text_weight_fc.0": "csa.predict.0", "text_weight_fc.2": "csa.predict.2"})
    for side in ("text", "video"):
        pie, uncertain, ours = f"pie_net_{side}", f"uncertain_net_{side}", f"msra.{side}"
        modules = {f"{pie}.fc": f"{ours}.mean", f"{pie}.layer_norm": f"{ours}.norm"}
        modules |= {f"{uncertain}.fc": f"{ours}.local_deviation", f"{uncertain}.fc2": f"{ours}.global_deviation"}
        names |= _released.parameters(modules)
        for theirs, gate in ((pie, "mean_gate"), (uncertain, "deviation_gate")):
            names |= {f"{theirs}.attention.w_{n + 1}.weight": f"{ours}.{gate}.{2 * n}.weight" for n in (0, 1)}
    own = ("frame_branch_query_", *(key.partition(".")[0] for key in names))
    base = {key: tensor for key, tensor in state.items() if not key.startswith(own)}
    of_model = gmmformer_v2.from_released(base)
    # The second encoder of words has the parameters of the first, and so the first's names, once in its place.
    first = {"query_input_proj.": "frame_branch_query_proj.", "query_encoder.": "frame_branch_query_encoder."}
    for key in base:
        prefix = next((prefix for prefix in first if key.startswith(prefix)), None)
        if prefix is not None:
            names[first[prefix] + key.removeprefix(prefix)] = key
    renamed = _released.renamed({key: state[key] for key in state.keys() - base.keys()}, names, "RAL4GMMV2_Net")
    encoders = gmmformer_v2.from_released({key: renamed.pop(key, tensor) for key, tensor in base.items()})
    parts = ("words.project.", "words.attend.")
    renamed |= {f"csa.{k.removeprefix('words.')}": tensor for k, tensor in encoders.items() if k.startswith(parts)}
    del renamed["csa.predict.2.bias"]
    return of_model, renamed


def _anew(module: nn.Module) -> nn.Module:
    """One that is built alike, with weights of its own."""
    made = copy.deepcopy(module)
    for part in made.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    return made


def _position(part: str, model: VideoTextModel) -> PositionEmbedding:
    """Of the model's encoder of ``words`` or ``frames``; raises TypeError where that is another module."""
    position = model.get_submodule(f"{part}.position")
    if not isinstance(position, PositionEmbedding):
        raise TypeError(f"{type(model).__name__}: {part}.position is no PositionEmbedding")
    return position


def _own(text: TextCode) -> RalText:
    if not isinstance(text, RalText):
        raise TypeError(f"ral scores what its own encode_text returns, not a {type(text).__name__}")
    return text
