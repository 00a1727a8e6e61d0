"""What an objective needs of a model and reads from its codes."""

from torch import Tensor, nn

from prvr.manifests.errors import ConfigurationError
from prvr.train.interface import VideoCode, VideoTextModel
from prvr.train.layers import PositionEmbedding


def require(objective: str, part: str, model: VideoTextModel, reason: str) -> None:
    """Refuse a model whose video codes have no ``part``; raises ConfigurationError."""
    if part not in model.gives:
        given = ", ".join(sorted(model.gives)) or "none"
        raise ConfigurationError(
            f"{objective} cannot be added to this model ({type(model).__name__}): {reason}, "
            f"and its video codes have no {part} (they have: {given})"
        )


def moments(video: VideoCode) -> Tensor:
    """[V, C, D]; raises TypeError where a model broke the promise of its ``gives``."""
    return _kept("moments", video.moments)


def frames(video: VideoCode) -> Tensor:
    """[V, F, D]; raises TypeError where a model broke the promise of its ``gives``."""
    return _kept("frames", video.frames)


def width(model: nn.Module) -> int:
    """D of a model's codes, which is that of its position embeddings; for objectives that own parameters.

    Raises:
        ConfigurationError: a model without any, or of several widths.
    """
    widths = {module.table.embedding_dim for module in model.modules() if isinstance(module, PositionEmbedding)}
    if len(widths) != 1:
        raise ConfigurationError(
            f"{type(model).__name__}: position embeddings of one width were expected, not {widths}"
        )
    return widths.pop()


def _kept(name: str, codes: Tensor | None) -> Tensor:
    if codes is None:
        raise TypeError(f"the model's gives names {name}, but its video codes have none")
    return codes
