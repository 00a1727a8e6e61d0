"""SlowFast R50 8×8 window features, 2304 wide: Feichtenhofer et al., SlowFast Networks for Video Recognition, ICCV 2019
(arXiv 1812.03982); PyTorchVideo's ``slowfast_r50``.

The fast pathway reads all pictures of a window, the slow one a fourth of them. The tap is block 5, the averages of both
pathways side by side (2048 slow, then 256 fast), before the projection of block 6; see ``_pytorchvideo``.

As in the released code, and unlike the paper's stride of 4, the slow pictures are spread from the window's first to its last
(PySlowFast, ``pack_pathway_output``): of 32 the numbers 0, 4, 8, 13, 17, 22, 26 and 31. The weights were trained on those.
"""

import torch
from torch import Tensor, fx, nn

from prvr.extract.backbones._network import Network
from prvr.extract.backbones._pytorchvideo import VideoOptions, hub, load
from prvr.extract.weights import Weights

RATIO = 4
"""Fast pictures to a slow one: the paper's alpha."""


class _Pathways(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        # The last fusion does nothing, and torch.fx cannot see the list that comes out of it.
        network.get_submodule("blocks.4").register_module("multipathway_fusion", None)

    def forward(self, pictures: Tensor) -> Tensor:
        rows: Tensor = self.network([slow(pictures), pictures])
        return rows


@fx.wrap
def slow(pictures: Tensor) -> Tensor:
    """The slow pathway's pictures [B, 3, T / 4, h, w] of a window's [B, 3, T, h, w]."""
    length = pictures.shape[2]
    # Rounded up, as the fast pathway's strided convolutions do where T is no multiple of 4.
    places = torch.linspace(0, length - 1, -(-length // RATIO)).long()
    return pictures.index_select(2, places.to(pictures.device))


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Network:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    return load(
        hub.slowfast_r50, weights, options, device, what="PyTorchVideo's slowfast_r50", dim=2304, around=_Pathways
    )
