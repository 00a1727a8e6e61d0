"""RAL's Gaussians of videos and of their queries: how they are estimated, compared and sampled (see ``ral.py``).

Letters: ``G`` sets of codes, ``N`` sequences of length ``L``, ``K`` proxies.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.train.layers import DecayedNorm

LOCAL, GLOBAL = "local", "global"
GRAINS = (LOCAL, GLOBAL)


@dataclass(frozen=True)
class CodeSets:
    """G sets of codes, each of one or more sequences.

    Args:
        codes: [N, L, D].
        mask: [N, L], which are real.
        seen: [N, L], which attention sees.
        owner: [N], the set of each sequence; every set has one.
        blanks: [G], rows of zeros that attention sees in each set beside them.
    """

    codes: Tensor
    mask: Tensor
    seen: Tensor
    owner: Tensor
    blanks: Tensor

    def mean(self, *, unit: bool = False) -> Tensor:
        """[G, D], of the real codes; of their directions, scaled to a direction again, where ``unit``."""
        codes = functional.normalize(self.codes, dim=-1) if unit else self.codes
        mean = self._summed((codes * self.mask[..., None]).sum(1)) / self._summed(self.mask.sum(1))[:, None].clamp_min(
            1
        )
        return functional.normalize(mean, dim=-1) if unit else mean

    def attended(self, logits: Tensor) -> Tensor:
        """[G, D], the mean under the softmax of ``logits`` [N, L] over a whole set; a row of zeros has logit 0."""
        logits = logits.masked_fill(~self.seen, -torch.inf)
        least = torch.finfo(logits.dtype).min
        peak = torch.zeros_like(self.blanks, dtype=logits.dtype).masked_fill(self.blanks == 0, least)
        peak = peak.scatter_reduce(0, self.owner, logits.detach().amax(1), "amax")
        weights = (logits - peak[self.owner, None]).exp()
        total = self._summed(weights.sum(1)) + self.blanks * (-peak).exp().where(self.blanks > 0, 0)
        pooled = self._summed(torch.einsum("nl,nld->nd", weights, self.codes))
        return pooled / total[:, None].clamp_min(1e-12)

    def _summed(self, values: Tensor) -> Tensor:
        """[N, …] to [G, …], over the sequences of each set."""
        return values.new_zeros(len(self.blanks), *values.shape[1:]).index_add(0, self.owner, values)


@dataclass(frozen=True)
class Gaussians:
    """Equation 4: G of them, with independent dimensions: ``mean`` and logarithm of the standard deviation, both [G, D]."""

    mean: Tensor
    log_deviation: Tensor

    def proxies(self, count: int, rng: torch.Generator) -> Tensor:
        """[G, K, D], equation 9; the mean alone where ``count`` is 0. Draws G K D numbers in one call of ``randn``."""
        if not count:
            return self.mean[:, None]
        noise = torch.randn(len(self.mean), count, self.mean.shape[1], generator=rng).to(self.mean)
        return self.mean[:, None] + self.log_deviation.exp()[:, None] * noise


class ReleasedEstimator(nn.Module):
    """What the released code makes of equations 3, 6 and 7: PCME's modules (Chun et al., CVPR 2021).

    Args:
        width: D.
        unit_mean: the global feature is the mean of directions (of frames), not of codes (of words).
        grains: of ``local`` and ``global``.
    """

    def __init__(self, *, width: int, unit_mean: bool, grains: Collection[str]) -> None:
        super().__init__()
        self.unit_mean = unit_mean
        self.norm = DecayedNorm(width)  # released as layer_norm, which the exemption from decay does not know
        if LOCAL in grains:
            self.mean_gate, self.deviation_gate = _gate(width, width // 2), _gate(width, width // 2)
            self.mean, self.local_deviation = nn.Linear(width, width), nn.Linear(width, width)
        if GLOBAL in grains:
            self.global_deviation = nn.Linear(width, width)
        self.grains = frozenset(grains)

    def forward(self, sets: CodeSets) -> Gaussians:
        """One for each set."""
        means, deviations = [], []
        if GLOBAL in self.grains:
            whole = sets.mean(unit=self.unit_mean)
            means.append(whole)
            deviations.append(self.global_deviation(whole))
        if LOCAL in self.grains:
            means.append(self.mean(sets.attended(self.mean_gate(sets.codes).squeeze(-1))).sigmoid())
            deviations.append(self.local_deviation(sets.attended(self.deviation_gate(sets.codes).squeeze(-1))))
        mean = functional.normalize(self.norm(torch.stack(means).sum(0)), dim=-1)
        return Gaussians(mean, torch.stack(deviations).sum(0))


class PaperEstimator(nn.Module):
    """Equations 3, 6 and 7 as they stand; the arguments are those of the other."""

    def __init__(self, *, width: int, unit_mean: bool, grains: Collection[str]) -> None:
        super().__init__()
        self.unit_mean = unit_mean
        if GLOBAL in grains:
            self.whole = nn.Linear(width, width)
        if LOCAL in grains:
            self.gate = _gate(width, width)
        self.norm = nn.LayerNorm(width)
        self.mean = nn.Linear(width, width)
        self.deviation = nn.Linear(width, width)
        self.grains = frozenset(grains)

    def forward(self, sets: CodeSets) -> Gaussians:
        """One for each set."""
        parts = []
        if GLOBAL in self.grains:
            parts.append(self.whole(sets.mean(unit=self.unit_mean)))
        if LOCAL in self.grains:
            parts.append(sets.attended(self.gate(sets.codes).squeeze(-1)))
        aggregated = self.norm(torch.stack(parts).sum(0))
        return Gaussians(self.mean(aggregated), self.deviation(aggregated))


def _gate(width: int, inner: int) -> nn.Sequential:
    """w_2 tanh(W_1 x) of equation 6: [.., D] to [.., 1]."""
    return nn.Sequential(nn.Linear(width, inner, bias=False), nn.Tanh(), nn.Linear(inner, 1, bias=False))


def divergence(one: Gaussians, other: Gaussians) -> Tensor:
    """KL(one || other), [G]: of each pair, in nats; of text and video, in equation 8."""
    ratio = 2 * (one.log_deviation - other.log_deviation)
    distance = (one.mean - other.mean).square() * (-2 * other.log_deviation).exp()
    return 0.5 * (ratio.exp() + distance - 1 - ratio).sum(1)


def from_standard(one: Gaussians) -> Tensor:
    """KL(one || N(0, I)), [G]; in equation 8."""
    return divergence(one, Gaussians(torch.zeros_like(one.mean), torch.zeros_like(one.log_deviation)))


def mean_of_logs(text: Tensor, video: Tensor, owner: Tensor) -> Tensor:
    """Equation 10 as released: a scalar, both directions averaged.

    Of the softmax of a proxy's dot products with all proxies of the other side, the logarithm at each proxy of its own is
    averaged: a supervised contrastive loss, without a temperature.

    Args:
        text: [G, K, D].
        video: [V, K, D].
        owner: [G], the video of each; every video is the owner of some.
    """
    products, own = _compared(text, video, owner)
    losses = []
    for logits, positive in ((products, own), (products.T, own.T)):
        losses.append((logits.logsumexp(1) - (logits * positive).sum(1) / positive.sum(1)).mean())
    return torch.stack(losses).mean()


def log_of_sums(text: Tensor, video: Tensor, owner: Tensor, *, temperature: float) -> Tensor:
    """Equation 10: a scalar, the mean over the text proxies; the arguments are those of the other."""
    cosines, own = _compared(functional.normalize(text, dim=-1), functional.normalize(video, dim=-1), owner)
    logits = cosines / temperature
    return (logits.logsumexp(1) - logits.masked_fill(~own, -torch.inf).logsumexp(1)).mean()


def _compared(text: Tensor, video: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """Dot products [G K, V K] of all proxies, and which of them belong together."""
    own = owner[:, None] == torch.arange(len(video), device=owner.device)
    own = own.repeat_interleave(text.shape[1], 0).repeat_interleave(video.shape[1], 1)
    return text.flatten(0, 1) @ video.flatten(0, 1).T, own
