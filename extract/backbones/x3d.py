"""X3D-M window features, 2048 wide: Feichtenhofer, X3D: Expanding Architectures for Efficient Video Recognition, CVPR 2020
(arXiv 2004.04730); PyTorchVideo's ``x3d_m``.

The tap is the ``pool`` of block 5, the head: 432 channels averaged, then made 2048 by a convolution and a ReLU. It is what the
projection to the classes reads; see ``_pytorchvideo``.
"""

import torch

from prvr.extract.backbones._network import Network
from prvr.extract.backbones._pytorchvideo import VideoOptions, hub, load
from prvr.extract.weights import Weights


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Network:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    return load(hub.x3d_m, weights, options, device, what="PyTorchVideo's x3d_m", dim=2048)
