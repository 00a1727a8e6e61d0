"""PyTorchVideo's networks without their classifiers: Fan et al., PyTorchVideo, ACM MM 2021 (arXiv 2111.09887).

A network's last block is a head: an average over a window of the last map, moved over it where the map is larger, then a
linear layer to the classes, then the mean over the window's places. The features are what that linear layer reads, averaged
over the places. The window is 7 × 7: there is one place for pictures of 224 × 224, and 2 × 2 for 256 × 256.

``hub`` is ``pytorchvideo.models.hub``, imported without the warnings of its dependencies.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from prvr.extract.backbones._network import Network, folded, loaded
from prvr.extract.framing import Framing
from prvr.extract.weights import Weights, read_state
from prvr.manifests.errors import ConfigurationError

with warnings.catch_warnings():
    # fvcore, which pytorchvideo imports, scripts a loss that nobody calls here.
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.script` is deprecated", category=FutureWarning)
    from pytorchvideo.models import hub as hub


@dataclass(frozen=True)
class VideoOptions:
    """How pictures are framed and normalised; the defaults are those of PyTorchVideo's examples on torch.hub, which resize
    without antialiasing."""

    framing: Framing = field(default_factory=lambda: Framing(short_side=256, crop=256, antialias=False))
    mean: tuple[float, float, float] = (0.45, 0.45, 0.45)
    deviation: tuple[float, float, float] = (0.225, 0.225, 0.225)


def load(
    build: Callable[[], nn.Module],
    weights: Weights,
    options: VideoOptions,
    device: torch.device,
    *,
    what: str,
    dim: int,
    around: Callable[[nn.Module], nn.Module] = lambda network: network,
) -> Network:
    """A network of the hub up to its classifier, with its weights.

    Args:
        build: makes it, of ``hub``, with random weights.
        what: names it in the error.
        dim: width of what the classifier reads.
        around: puts a module around it that takes [B, 3, T, h, w], where it does not do so itself.

    Raises:
        ConfigurationError: the file holds the weights of another network. Of how many classes does not matter.
    """
    network, sha256 = loaded(lambda: _body(build()), weights, what, _read)
    return Network(
        _Windows(folded(around(network)), what),
        dim=dim,
        sha256=sha256,
        framing=options.framing,
        mean=options.mean,
        deviation=options.deviation,
        device=device,
    )


def _read(path: Path) -> dict[str, Tensor]:
    return {name: value for name, value in read_state(path).items() if not re.match(r"blocks\.\d+\.proj\.", name)}


def _body(network: nn.Module) -> nn.Module:
    head: nn.Module = network.get_submodule("blocks")[-1]  # type: ignore[index]
    for name in ("dropout", "proj", "activation"):
        setattr(head, name, None)
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.AvgPool3d) and isinstance(child.kernel_size, tuple):
                setattr(module, name, _Average(child.kernel_size))
    return network


class _Windows(nn.Module):
    def __init__(self, network: nn.Module, what: str) -> None:
        super().__init__()
        self.network = network
        self.what = what

    def forward(self, windows: Tensor) -> Tensor:
        # A convolution would take four dimensions for those of one window.
        if windows.ndim != 5:
            raise ConfigurationError(f"{self.what} reads windows of pictures: give its recipe a [window]")
        rows: Tensor = self.network(windows)
        return rows


class _Average(nn.Module):
    """The mean over each window of so many (times, rows, columns); of the whole map along a side that is shorter."""

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.size = tuple(int(side) for side in size)

    def forward(self, values: Tensor) -> Tensor:
        return _average(values, self.size)


@fx.wrap
def _average(values: Tensor, size: tuple[int, ...]) -> Tensor:
    fitting = [min(window, side) for window, side in zip(size, values.shape[2:], strict=True)]
    return nn.functional.avg_pool3d(values, fitting, stride=1)
