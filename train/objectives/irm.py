"""IRM, Intra Redundancy Mining: what a video holds beside the queried moment is told from that moment and its query.

Junlong Ren, Gangjian Zhang, Yu Hu, Jian Shu, Hui Xiong, Hao Wang: Enhanced Partially Relevant Video Retrieval through
Inter- and Intra-Sample Analysis with Coherence Prediction. arXiv:2504.19637, section 3.4, equation 5 (9 and 10 in v1);
the weight lambda_4 is v1's. No code was published.

For each query q with its video's vector v and the video's most similar moment m_k (equation 2), r_v = FC(v - m_k) and
r_q = FC(v - q) are redundant. L_neg has them for negatives of q and of m_k, L_red aligns them with each other.

What the papers leave open, and how it is read here:
  - FC is one linear layer for both, as equation 5 writes it;
  - L_neg: "negative samples in the moment-level similarity learning". q and m_k are the pair, and both r are said to be
    irrelevant to both of them, so both r are negatives of q against m_k and of m_k against q. Nothing else is: the
    other videos and queries of the batch are negatives of q and m_k in the moment branch's own losses already;
  - L_red: the Q pairs (r_v, r_q) of a batch, every other query's being a negative, queries of the same video included;
  - how the losses are weighted: see ``_contrast.py``; L_neg is averaged over both negatives, and summed over q and m_k;
  - a model without a video vector: v is the mean of the moments. It holds what all of them hold, in the space in which
    m_k and q are compared. In MS-SL that is the longest of its proposals, and trained as such; its encoded frames are
    not in that space (equation 7 of MS-SL compares W_v F). The paper adds IRM to MS-SL and does not say;
  - MS-SL's m_k: the best of its 32 moments, as equation 2 has it, and not its key clip, a proposal.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError
from prvr.train.interface import Objective, Step, VideoTextModel
from prvr.train.layers import initialise
from prvr.train.objectives import _codes
from prvr.train.objectives._contrast import Contrast


@dataclass(frozen=True)
class Options:
    """Settings of IRM; the defaults are the published ones.

    Args:
        weight: lambda_4 of equation 13 of v1.
        neg: weight of L_neg; 0 is without.
        red: weight of L_red; 0 is without.
        contrast: of both.
        initializer_range: standard deviation of the initial matrix.

    Raises:
        ConfigurationError: a value out of its range, or nothing to compute.
    """

    weight: float = 1.0
    neg: float = 1.0
    red: float = 1.0
    contrast: Contrast = field(default_factory=Contrast)
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name in ("weight", "neg", "red", "initializer_range"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"irm: {name} is {getattr(self, name)}, but must be finite and not negative")
        if not self.neg and not self.red:
            raise ConfigurationError(
                "irm: neg and red are both 0; to train without, leave +irm out of the model's name"
            )


class Irm(Objective):
    """Terms ``irm_neg`` and ``irm_red``, those whose weight is not 0.

    Args:
        bridge: [.., D] to the same shape, FC of equation 5 (9 in v1).
        weights: of ``neg`` and ``red``.
        contrast: of both.
    """

    def __init__(self, *, bridge: nn.Linear, weights: dict[str, float], contrast: Contrast) -> None:
        super().__init__()
        self.bridge = bridge
        self.weights = weights
        self.contrast = contrast

    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """One or two weighted scalars; their sum is equation 10 of v1."""
        moments, query, owner = _codes.moments(step.video), step.text.sentence, step.owner
        whole = (moments.mean(1) if step.video.global_ is None else step.video.global_)[owner]
        key = moments[owner, key_moments(query, moments, owner)]
        # Equation 5 (9 in v1).
        by_video, by_query = self.bridge(whole - key), self.bridge(whole - query)
        found = {}
        if self.weights["neg"]:
            redundant = torch.stack([by_video, by_query], dim=1)
            loss = self.contrast.of_negatives(query, key, redundant) + self.contrast.of_negatives(key, query, redundant)
            found["irm_neg"] = self.weights["neg"] * loss
        if self.weights["red"]:
            found["irm_red"] = self.weights["red"] * self.contrast.of_pairs(by_video, by_query, step)
        return found


def build(options: Options, model: VideoTextModel) -> Irm:
    """IRM; it owns the matrix and bias of FC.

    Raises:
        ConfigurationError: a model without moments.
    """
    _codes.require("irm", "moments", model, "it tells a video's best moment from the rest of it")
    width = _codes.width(model)
    weights = {"neg": options.weight * options.neg, "red": options.weight * options.red}
    irm = Irm(bridge=nn.Linear(width, width), weights=weights, contrast=options.contrast)
    initialise(irm, options.initializer_range)
    return irm


@torch.no_grad()
def key_moments(query: Tensor, moments: Tensor, owner: Tensor) -> Tensor:
    """Index [Q] of the moment most similar to each ``query`` [Q, D], of its own video's ``moments`` [V, C, D]."""
    return torch.einsum("qd,qcd->qc", query, functional.normalize(moments, dim=-1)[owner]).argmax(1)
