"""I3D ResNet-50 window features, 2048 wide, of PyTorchVideo's ``i3d_r50``, which is no Inception-I3D (that is ``i3d``).

Carreira and Zisserman, Quo Vadis, Action Recognition? A New Model and the Kinetics Dataset, CVPR 2017 (arXiv 1705.07750),
as a ResNet-50: Wang et al., Non-local Neural Networks, CVPR 2018 (arXiv 1711.07971). The tap is the average of block 6, the
head, before its projection; see ``_pytorchvideo``.
"""

import torch

from prvr.extract.backbones._network import Network
from prvr.extract.backbones._pytorchvideo import VideoOptions, hub, load
from prvr.extract.weights import Weights


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Network:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    return load(hub.i3d_r50, weights, options, device, what="PyTorchVideo's i3d_r50", dim=2048)
