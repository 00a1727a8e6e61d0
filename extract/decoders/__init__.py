"""The decoders: one library a file. Each has ``frames(video, samplings) -> Iterator[Pick[uint8 tensor [3, H, W]]]``,
with the pictures turned as the file says, and raises DecodeError where it cannot be exact."""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from prvr.extract.sampling import Pick, Sampling
from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError, UnknownName

if TYPE_CHECKING:  # Loading torch takes seconds, and choosing a decoder does not need it.
    from torch import Tensor

AUTO = "auto"

type Picture = Tensor  # [3, H, W] uint8


class DecoderModule(Protocol):
    """The shape of a decoder's file."""

    def frames(self, video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]: ...


names = partial(registry.names, __name__)


def load(name: str) -> DecoderModule:
    """The decoder's module; raises UnknownName."""
    return cast(DecoderModule, registry.load(__name__, name, kind="decoder"))


_NEEDS = {"decord": "decord", "torchcodec": "torchcodec", "nvdec": "torchcodec"}
"""The package of a decoder that is not installed everywhere: decord has no wheel outside x86-64, torchcodec is an extra."""


def available(name: str) -> bool:
    """Whether a decoder's package is installed here."""
    return name not in _NEEDS or find_spec(_NEEDS[name]) is not None


def check(name: str) -> None:
    """Raise UnknownName, or ConfigurationError where that decoder is not installed here. ``auto`` always is."""
    if name not in (AUTO, *names()):
        raise UnknownName("decoder", name, (AUTO, *names()))
    if not available(name):
        raise ConfigurationError(
            f"{_NEEDS[name]}, which --decoder {name} needs, is not installed here; use --decoder auto"
        )
