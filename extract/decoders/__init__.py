"""The decoders: one library a file. Each has ``frames(video, samplings) -> Iterator[Pick[uint8 array [H, W, 3]]]``,
with the pictures turned as the file says, and raises DecodeError where it cannot be exact."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from prvr.extract.sampling import Pick, Sampling
from prvr.manifests import registry

type Picture = NDArray[np.uint8]


class DecoderModule(Protocol):
    """The shape of a decoder's file."""

    def frames(self, video: Path, samplings: Sequence[Sampling]) -> Iterator[Pick[Picture]]: ...


names = partial(registry.names, __name__)


def load(name: str) -> DecoderModule:
    """The decoder's module; raises UnknownName."""
    return cast(DecoderModule, registry.load(__name__, name, kind="decoder"))
