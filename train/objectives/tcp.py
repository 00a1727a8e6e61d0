"""TCP, Temporal Coherence Prediction: from what part of its video each frame and moment is, shuffled ones included.

Junlong Ren, Gangjian Zhang, Yu Hu, Jian Shu, Hui Xiong, Hao Wang: Enhanced Partially Relevant Video Retrieval through
Inter- and Intra-Sample Analysis with Coherence Prediction. arXiv:2504.19637, section 3.5, equations 6 and 7 (11 and 12
in v1); the weight lambda_5 and the shuffle ratio beta_r are v1's. No code was published.

A video's T frames are g groups of consecutive ones. Some of the frames are shuffled and all are encoded again; a
classifier tells the group of each code, of the video as it is and of the shuffled one, where a frame keeps the group
that it is from. The same for its moments, by a classifier of their own.

What the papers leave open, and how it is read here:
  - "every T / g consecutive frames": frame t, counted from 0, is of group floor(t g / T), also where g does not divide T;
    a video of fewer frames than groups leaves groups out;
  - round(beta_r T) frames, half to even, are chosen at random, and their order is random: a frame may stay where it was;
  - shuffled are the input features, before projection and positions ("shuffle … and encode them");
  - equation 7 is of one video, with a mean over its frames; a batch is the mean of its videos, and the two branches add;
  - CLS is linear, as v1 says, and each branch has its own, as codes of different encoders;
  - on a model with one of the branches alone, that branch. MS-SL's are its encoded frames and its 32 moments.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Objective, Step, VideoCode, VideoTextModel
from prvr.train.layers import initialise
from prvr.train.objectives import _codes

BRANCHES = {"frames": _codes.frames, "moments": _codes.moments}


@dataclass(frozen=True)
class Options:
    """Settings of TCP; the defaults are the published ones.

    Args:
        weight: lambda_5 of equation 13 of v1.
        groups: g.
        shuffle: beta_r, the part of a video's frames that is shuffled.
        branches: ``frames`` (the video branch), ``moments``, or both; empty for those that the model has.
        initializer_range: standard deviation of the initial matrices.

    Raises:
        ConfigurationError: a value out of its range.
    """

    weight: float = 1.0
    groups: int = 8
    shuffle: float = 0.25
    branches: tuple[str, ...] = ()
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name in ("weight", "initializer_range"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"tcp: {name} is {getattr(self, name)}, but must be finite and not negative")
        if self.groups < 2:
            raise ConfigurationError(f"tcp: groups is {self.groups}, but must be at least 2")
        if not 0 <= self.shuffle <= 1:
            raise ConfigurationError(f"tcp: shuffle is {self.shuffle}, but must be in [0, 1]")
        for name in self.branches:
            if name not in BRANCHES:
                raise UnknownName("branch of tcp", name, BRANCHES)


class Tcp(Objective):
    """Terms ``tcp_frames`` and ``tcp_moments``, those that have a classifier.

    Args:
        classifiers: for each branch, [.., D] to [.., g].
        weight: of each branch.
        shuffle: the part of a video's frames, and of its moments, that is shuffled.
    """

    def __init__(self, *, classifiers: dict[str, nn.Linear], weight: float, shuffle: float) -> None:
        super().__init__()
        self.classifiers = nn.ModuleDict(classifiers)
        self.weight = weight
        self.shuffle = shuffle

    def terms(self, model: VideoTextModel, step: Step) -> dict[str, Tensor]:
        """A weighted scalar for each branch. Draws V F numbers for the frames, then V C for the moments."""
        videos = torch.arange(len(step.batch.frames), device=step.batch.frames.device)[:, None]
        inputs = {"frames": step.batch.frames, "moments": step.batch.clips}
        masks = {name: _mask(name, step) for name in self.classifiers}
        orders = {name: shuffled_order(mask, self.shuffle, step.rng) for name, mask in masks.items()}
        for name, order in orders.items():
            inputs[name] = inputs[name][videos, step.own(order)]
        again = step.gather(model.encode_video(inputs["frames"], step.batch.frame_mask, inputs["moments"]))
        return {
            f"tcp_{name}": self.weight * self._branch(name, step.video, again, masks[name], order)
            for name, order in orders.items()
        }

    def _branch(self, name: str, video: VideoCode, again: VideoCode, mask: Tensor, order: Tensor) -> Tensor:
        """Equations 6 and 7 (11 and 12 in v1) for one branch; ``mask`` and ``order`` are [V, L]."""
        classifier = self.classifiers[name]
        assert isinstance(classifier, nn.Linear)
        labels = group_labels(mask, classifier.out_features)
        losses = []
        for code, truth in ((video, labels), (again, labels.take_along_dim(order, 1))):
            # A model may pad its codes further than the batch is.
            logits = classifier(BRANCHES[name](code)[:, : mask.shape[1]])
            losses.append(functional.cross_entropy(logits.mT, truth, reduction="none"))
        return ((sum(losses) * mask).sum(1) / mask.sum(1).clamp_min(1)).mean()


def build(options: Options, model: VideoTextModel) -> Tcp:
    """TCP; it owns a classifier for each branch.

    Raises:
        ConfigurationError: a model without the branches that are asked for, or without any.
    """
    for name in options.branches:
        _codes.require("tcp", name, model, f"{name} were asked for")
    names = [name for name in BRANCHES if name in (options.branches or model.gives)]
    if not names:
        _codes.require("tcp", "frames or moments", model, "it predicts the order of frames or moments")
    width = _codes.width(model)
    classifiers = {name: nn.Linear(width, options.groups) for name in names}
    tcp = Tcp(classifiers=classifiers, weight=options.weight, shuffle=options.shuffle)
    initialise(tcp, options.initializer_range)
    return tcp


def _mask(branch: str, step: Step) -> Tensor:
    """[V, L], which places of a branch are real."""
    codes = BRANCHES[branch](step.video)
    mask = step.video.frame_mask if branch == "frames" else None
    return codes.new_ones(codes.shape[:2], dtype=torch.bool) if mask is None else mask


def group_labels(mask: Tensor, groups: int) -> Tensor:
    """[V, L] int64, from 0: the group of each place that ``mask`` [V, L] has; the others hold any group."""
    places = (mask.cumsum(1) - 1).clamp_min(0)
    return places * groups // mask.sum(1, keepdim=True).clamp_min(1)


def shuffled_order(mask: Tensor, ratio: float, rng: torch.Generator) -> Tensor:
    """[V, L] int64: which place's content stands at each place, once a ``ratio`` of those in ``mask`` [V, L] is shuffled.

    One call of ``rand`` for V L numbers: the places with the lowest are chosen, and in the order of these numbers they
    fill their own places from the first to the last.
    """
    videos, length = mask.shape
    draws = torch.rand(videos, length, generator=rng).to(mask.device).masked_fill(~mask, math.inf)
    count = (ratio * mask.sum(1, keepdim=True).double()).round()
    slots = torch.arange(length, device=mask.device)
    # What is not chosen goes to, and comes from, a place past the end.
    source = draws.argsort(1).masked_fill(slots >= count, length)
    places = source.sort(1).values
    return torch.arange(length + 1, device=mask.device).repeat(videos, 1).scatter(1, places, source)[:, :length]
