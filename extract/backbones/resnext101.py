"""ResNeXt-101 32×8d frame features, 2048 wide: Xie et al., Aggregated Residual Transformations for Deep Neural Networks,
CVPR 2017 (arXiv 1611.05431).

The tap is the global average pool before the classifier, of torchvision's network and weights. 32×8d rather than 64×4d,
because torchvision has weights of it that were trained as those of ``resnet`` were; those of 64×4d were only ever trained with
label smoothing and mixed pictures. Meta's weakly supervised ``ig_resnext101_32x8`` has the same network and loads too.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torchvision.models import resnext101_32x8d

from prvr.extract.backbones._network import Network, folded, loaded
from prvr.extract.framing import Framing
from prvr.extract.weights import Weights


@dataclass(frozen=True)
class VideoOptions:
    """How pictures are framed and normalised; the defaults are torchvision's for these weights."""

    framing: Framing = field(default_factory=lambda: Framing(short_side=256, crop=224))
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Network:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    network, sha256 = loaded(resnext101_32x8d, weights, "a ResNeXt-101 32x8d")
    network.fc = nn.Identity()
    return Network(
        folded(network),
        dim=2048,
        sha256=sha256,
        framing=options.framing,
        mean=options.mean,
        deviation=options.deviation,
        device=device,
    )
