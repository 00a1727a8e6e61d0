"""A network of plain torch as a video backbone: pictures are framed, normalised and sent through it in batches."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from prvr.extract.framing import Framing
from prvr.extract.weights import Weights, read_state
from prvr.manifests.errors import ConfigurationError


class Network:
    """[N, 3, H, W] uint8 pictures to [B, E] features, one for a picture or for a window of pictures.

    Args:
        network: [B, 3, h, w] to [B, E]; or, for windows, [B, 3, T, h, w] to [B, E].
        dim: E.
        sha256: of the weights.
        framing: what is done to pictures before.
        mean, deviation: a channel's value v (0 to 1) becomes (v - mean) / deviation.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        dim: int,
        sha256: str,
        framing: Framing,
        mean: Sequence[float],
        deviation: Sequence[float],
        device: torch.device,
    ) -> None:
        self.network = network.eval().requires_grad_(False).to(device)
        self.dim = dim
        self.sha256 = sha256
        self.framing = framing
        self.device = device
        # v / 255 - mean over deviation, in one multiplication and one addition.
        self._scale = (1 / (255 * torch.tensor(deviation, dtype=torch.float64))).float().to(device)
        shift = torch.tensor(mean, dtype=torch.float64) / torch.tensor(deviation, dtype=torch.float64)
        self._shift = -shift.float().to(device)

    def prepare(self, frames: Tensor) -> Tensor:
        """``frames`` [N, 3, H, W] uint8 to [N, 3, h, w] uint8 on the device."""
        return self.framing(frames.to(self.device, non_blocking=True))

    def __call__(self, pictures: Tensor) -> Tensor:
        """Prepared pictures [B, 3, h, w], or windows of them [B, T, 3, h, w], to [B, E]."""
        if pictures.ndim == 5:
            pictures = pictures.movedim(2, 1)
        sides = (-1, *[1] * (pictures.ndim - 2))
        values = pictures.float().mul_(self._scale.view(sides)).add_(self._shift.view(sides))
        layout = torch.channels_last_3d if values.ndim == 5 else torch.channels_last
        rows: Tensor = self.network(values.contiguous(memory_format=layout))
        return rows


def folded(network: nn.Module) -> nn.Module:
    """The same network with each batch norm folded into the convolution before it: the same numbers within 1e-6, fewer
    passes over memory. The network must be one that ``torch.fx`` can trace."""
    return fuse(network.eval())


def loaded(
    make: Callable[[], nn.Module], weights: Weights, what: str, read: Callable[..., dict[str, Tensor]] = read_state
) -> tuple[nn.Module, str]:
    """A network with its weights, strictly, and their SHA-256.

    Args:
        make: builds it; random weights are those of its own initialisation under the seed.
        what: names it in the error.

    Raises:
        ConfigurationError: the file holds the weights of another network.
    """
    if weights.seed is not None:
        torch.manual_seed(weights.seed)
    network = make()
    if weights.path is not None:
        try:
            network.load_state_dict(read(weights.path))
        except RuntimeError as error:
            lines = str(error).splitlines()
            raise ConfigurationError(
                f"{weights.path}: not the weights of {what} ({lines[min(1, len(lines) - 1)].strip()})"
            ) from None
    return network, weights.sha256(network.state_dict())
