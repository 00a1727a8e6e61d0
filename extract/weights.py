"""Weights: ``NAME`` downloads and caches, ``PATH`` loads, ``random:SEED`` is explicit. Nothing falls back to random."""

import glob
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.manifests.errors import ConfigurationError, MissingInput, PrvrError
from prvr.manifests.files import sha256_of, written_aside

if TYPE_CHECKING:  # Loading torch takes seconds, and choosing weights does not need it.
    from torch import Tensor

RANDOM = "random:"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """Weights that a name stands for: where they are, the first digits of their SHA-256, and under which licence.

    An empty ``sha256`` says that we do not know it: what is downloaded is taken as it comes, and its hash is logged.
    """

    url: str
    sha256: str
    licence: str


@dataclass(frozen=True)
class Weights:
    """Weights as a backbone loads them: a file or folder, or a seed.

    Args:
        name: as the user gave it.
        path: None where they are random.
        seed: None where they are not.
    """

    name: str
    path: Path | None
    seed: int | None

    def sha256(self, state: "Mapping[str, Tensor]") -> str:
        """SHA-256 of the file, of a folder's files, or of the random numbers themselves (``state``)."""
        if self.path is None:
            return _sha256_of_state(state)
        if self.path.suffix == ".index":  # A TensorFlow checkpoint: its numbers are in the files beside it.
            files = sorted([self.path, *self.path.parent.glob(f"{glob.escape(self.path.stem)}.data-*")])
        elif self.path.is_file():
            return sha256_of(self.path)
        else:
            files = sorted(path for path in self.path.iterdir() if path.is_file() and path.suffix in _LOADED)
        return hashlib.sha256("".join(f"{path.name} {sha256_of(path)}\n" for path in files).encode()).hexdigest()


_LOADED = (".json", ".safetensors", ".txt")
"""Endings of the files of a model folder that transformers reads."""


def resolve(text: str, published: Mapping[str, Published]) -> Weights:
    """Find weights: random numbers, an existing path, one of the ``published`` names, or a repository of the hub.

    Raises:
        MissingInput: what looks like a path and is not there.
        ConfigurationError: what can be none of these.
        PrvrError: the download failed, or has another hash.
    """
    return local(text) or (_from_url(text, published[text]) if text in published else _from_hub(text))


def _from_url(name: str, published: Published) -> Weights:
    stem = f"{name}-{published.sha256}" if published.sha256 else name
    target = cache() / f"{stem}{Path(published.url).suffix}"
    if not target.is_file():
        from torch.hub import download_url_to_file

        _log.info("downloading %s (%s) to %s", name, published.licence, target)
        with written_aside(target) as aside:
            try:
                download_url_to_file(published.url, str(aside), published.sha256 or None, progress=False)
            except (OSError, RuntimeError) as error:
                raise PrvrError(
                    f"{published.url}: {error}; without a network fetch it elsewhere and give its path with --weights"
                ) from error
        if not published.sha256:
            _log.warning("%s: NOT VERIFIED, the recipe knows no hash; SHA-256 %s", name, sha256_of(target))
    return Weights(name, target, None)


def _from_hub(name: str) -> Weights:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = snapshot_download(name, allow_patterns=[f"*{ending}" for ending in _LOADED])
    except HFValidationError:
        raise ConfigurationError(
            f"weights {name!r}: neither a path, nor random:SEED, nor a name that the recipe or the hub can know"
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise PrvrError(
            f"weights {name!r} cannot be fetched from the hub ({type(error).__name__}); "
            "without a network give a path with --weights"
        ) from error
    return Weights(name, Path(path), None)


def local(text: str) -> Weights | None:
    """Weights that need no download: ``random:SEED`` or an existing path; None for a name.

    Raises:
        MissingInput: what looks like a path and is not there.
        ConfigurationError: ``random:`` without a whole number.
    """
    if text.startswith(RANDOM):
        seed = text.removeprefix(RANDOM)
        if not seed.isdigit():
            raise ConfigurationError(f"weights {text!r}: write random:SEED with a whole number")
        _log.warning("weights %s: RANDOM numbers, not a trained model; the features mean nothing", text)
        return Weights(text, None, int(seed))
    path = Path(text).expanduser()
    if path.exists():
        return Weights(text, path, None)
    if (
        path.is_absolute()
        or text.startswith((".", "~"))
        or path.suffix in (".pth", ".pt", ".pyth", ".safetensors", ".index")
    ):
        raise MissingInput(f"weights {text!r}: no such file or folder")
    return None


def cache() -> Path:
    """Folder for downloads: ``PRVR_CACHE``, or ``~/.cache/prvr``."""
    return Path(os.environ.get("PRVR_CACHE", "~/.cache/prvr")).expanduser() / "weights"


def read_state(path: Path) -> "dict[str, Tensor]":
    """Tensors of a ``.safetensors`` file, or of a ``.pth`` file read without executing what is in it. PyTorchVideo's and
    PySlowFast's ``.pyth`` files hold theirs under ``model_state``.

    Raises:
        ConfigurationError: the file holds no tensors by name.
    """
    import pickle

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ConfigurationError(f"{path}: not a file of weights ({str(error).splitlines()[0]})") from None
    if isinstance(state, dict) and isinstance(state.get("model_state"), dict):
        state = state["model_state"]
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ConfigurationError(f"{path}: not a table of tensors")
    return state


def _sha256_of_state(state: "Mapping[str, Tensor]") -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
