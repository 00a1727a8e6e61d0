"""The decoders: one library a file. Each has ``frames(video, samplings) -> Iterator[Pick[uint8 array [H, W, 3]]]``,
with the pictures turned as the file says, and raises DecodeError where it cannot be exact."""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from prvr.extract.sampling import Pick, Sampling
from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError, UnknownName

AUTO = "auto"

type Picture = NDArray[np.uint8]


class DecoderModule(Protocol):
    """The shape of a decoder's file."""

    def frames(self, video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]: ...


names = partial(registry.names, __name__)


def load(name: str) -> DecoderModule:
    """The decoder's module; raises UnknownName."""
    return cast(DecoderModule, registry.load(__name__, name, kind="decoder"))


def available(name: str) -> bool:
    """Whether a decoder is installed here: decord has no wheel outside x86-64."""
    return name != "decord" or find_spec("decord") is not None


def check(name: str) -> None:
    """Raise UnknownName, or ConfigurationError where that decoder is not installed here. ``auto`` always is."""
    if name not in (AUTO, *names()):
        raise UnknownName("decoder", name, (AUTO, *names()))
    if not available(name):
        raise ConfigurationError(f"{name} is not installed here; use --decoder auto")
