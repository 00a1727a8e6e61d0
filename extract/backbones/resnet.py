"""ResNet-152 frame features, 2048 wide: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

The tap is the global average pool before the classifier, of torchvision's network and weights, as TVR's authors use it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models import resnet152
from torchvision.transforms.v2 import functional as pictures

from prvr.extract.weights import Weights, read_state
from prvr.manifests.errors import ConfigurationError

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class VideoOptions:
    """``size``: height and width that pictures are squashed to, bilinear."""

    size: tuple[int, int] = (224, 224)


class ResNet:
    """[N, 3, H, W] uint8 to [N, 2048]."""

    dim = 2048

    def __init__(self, network: nn.Module, *, sha256: str, size: tuple[int, int], device: torch.device) -> None:
        self.network = network.eval().to(device)
        self.sha256 = sha256
        self.size = list(size)
        self.device = device

    @torch.inference_mode()
    def __call__(self, frames: Tensor) -> Tensor:
        """One feature row a frame."""
        small = pictures.resize(frames.to(self.device), self.size, antialias=True)
        ready = pictures.normalize(pictures.to_dtype(small, torch.float32, scale=True), MEAN, DEVIATION)
        rows: Tensor = self.network(ready)
        return rows


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> ResNet:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    if weights.seed is not None:
        torch.manual_seed(weights.seed)
    network = resnet152(weights=None)
    if weights.path is not None:
        try:
            network.load_state_dict(read_state(weights.path))
        except RuntimeError as error:
            raise ConfigurationError(f"{weights.path}: not the weights of a ResNet-152 ({_first(error)})") from None
    sha256 = weights.sha256(network.state_dict())
    network.fc = nn.Identity()
    return ResNet(network, sha256=sha256, size=options.size, device=device)


def _first(error: Exception) -> str:
    return " ".join(str(error).splitlines()[1:2]).strip()
