"""Backbones: one network family a file, found by its name.

A file has, for the streams that it serves:

- ``VideoOptions`` and ``load_video(weights, options, device) -> VideoBackbone``;
- ``TextOptions`` and ``load_text(weights, options, device) -> TextBackbone``.

Its default recipe, of the same name in ``extract/recipes``, has the settings of both and says where weights are.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Protocol

from torch import Tensor

from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError


class VideoBackbone(Protocol):
    """Pictures to feature rows. Rows are computed in batches of one fixed size, which may hold pictures of several videos:
    a row must not depend on its neighbours, nor, bit for bit, on its place in the batch."""

    dim: int
    sha256: str

    def prepare(self, frames: Tensor) -> Tensor:
        """``frames`` [N, 3, H, W] uint8 RGB, of any size, to pictures [N, 3, h, w] uint8 of one size, on the device."""
        ...

    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures [B, 3, h, w], or windows of T pictures [B, T, 3, h, w], to rows [B, E] float32."""
        ...


class TextBackbone(Protocol):
    """Sentences to feature rows."""

    dim: int
    sha256: str

    def __call__(self, sentences: Sequence[str]) -> list[Tensor]:
        """Each sentence to [W, E] float32; a sentence vector is W = 1."""
        ...


names = partial(registry.names, __name__)


def load(name: str, stream: str) -> ModuleType:
    """The backbone's module; raises UnknownName, or ConfigurationError where it does not serve that stream."""
    module = registry.load(__name__, name, kind="backbone")
    if not hasattr(module, f"load_{stream}"):
        raise ConfigurationError(f"backbone {name!r} makes no {stream} features")
    return module
