"""ResNet-152 frame features, 2048 wide: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

The tap is the global average pool before the classifier, of torchvision's network and weights, as TVR's authors use it.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torchvision.models import resnet152

from prvr.extract.backbones._network import Network, folded, loaded
from prvr.extract.framing import Framing
from prvr.extract.weights import Weights


@dataclass(frozen=True)
class VideoOptions:
    """How pictures are framed and normalised; the defaults are torchvision's for these weights, squashed as TVR does."""

    framing: Framing = field(default_factory=lambda: Framing(size=(224, 224)))
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Network:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    network, sha256 = loaded(resnet152, weights, "a ResNet-152")
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
