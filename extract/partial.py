"""Rows of a video that is not finished yet, kept beside the store: a kill in the middle of a long one costs seconds.

``<name>.partial-<digest of id and channel>.safetensors`` holds the first rows of one channel. It counts for the same source,
recipe and weights alone, and is removed when the video is committed. Decoding begins again; the networks do not.
"""

import glob
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prvr.datasets.store import FeatureSpec
from prvr.manifests.files import digest_of, sweep, written_aside


def remove_all(store: Path) -> None:
    """Forget every unfinished video of a store."""
    for kept in store.parent.glob(f"{glob.escape(_stem(store).name)}.partial-*.safetensors"):
        kept.unlink()


def _stem(store: Path) -> Path:
    return store.with_name(store.name.removesuffix(".zarr"))


class Partial:
    """The unfinished rows beside one store."""

    def __init__(self, store: Path, spec: FeatureSpec) -> None:
        self._stem = _stem(store)
        # What was being written when a process was killed lies under a name that may never be written again.
        for left in store.parent.glob(f".{glob.escape(self._stem.name)}.partial-*.tmp"):
            sweep(left.with_name(left.name.removeprefix(".").split(".safetensors.")[0] + ".safetensors"))
        self._identity = digest_of(spec.identity())

    def read(self, id_: str, fingerprint: str, channel: int) -> NDArray[np.float32] | None:
        """The first rows [n, E] of a source's channel, or None."""
        path = self._path(id_, channel)
        if not path.is_file():
            return None
        try:
            with safe_open(path, "numpy") as file:
                if file.metadata() != self._made_of(fingerprint):
                    return None
                rows: NDArray[np.float32] = file.get_tensor("rows")
                return rows
        except (SafetensorError, OSError):
            return None  # Not worth an error: the rows are computed again.

    def write(self, id_: str, fingerprint: str, channel: int, rows: NDArray[np.float32]) -> None:
        """Keep the first rows [n, E], whole or not at all."""
        with written_aside(self._path(id_, channel)) as aside:
            save_file({"rows": rows}, aside, metadata=self._made_of(fingerprint))

    def remove(self, id_: str, channels: int) -> None:
        """The source is committed, or has failed."""
        for channel in range(channels):
            self._path(id_, channel).unlink(missing_ok=True)

    def _made_of(self, fingerprint: str) -> dict[str, str]:
        return {"spec": self._identity, "fingerprint": fingerprint}

    def _path(self, id_: str, channel: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}.partial-{digest_of([id_, channel])[:32]}.safetensors")
