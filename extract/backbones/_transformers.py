"""Transformers' models as backbones. Loading is strict: a weight that the files lack is an error, never a random number."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


class Pictures:
    """[N, 3, H, W] uint8 pictures to [B, E] features, one for a picture or for a window of pictures.

    Args:
        model: put on the device.
        processor: of the weights' preprocessor file.
        rows: normalised pictures [B, 3, h, w], or windows of them [B, T, 3, h, w], to [B, E], with the model.
        dim: E.
        sha256: of the weights.
        swap_red_and_blue: before anything else.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        rows: Callable[[Tensor], Tensor],
        *,
        dim: int,
        sha256: str,
        device: torch.device,
        swap_red_and_blue: bool = False,
    ) -> None:
        model.requires_grad_(False)
        model.to(device)  # type: ignore[arg-type]
        self.processor = processor
        self.rows = rows
        self.dim = dim
        self.sha256 = sha256
        self.device = device
        self.swap_red_and_blue = swap_red_and_blue

    def prepare(self, frames: Tensor) -> Tensor:
        """``frames`` [N, 3, H, W] uint8 to [N, 3, h, w] uint8 on the device: resized and cropped."""
        frames = frames.to(self.device, non_blocking=True)
        return self._processed(
            frames.flip(-3) if self.swap_red_and_blue else frames, do_rescale=False, do_normalize=False
        )

    def __call__(self, pictures: Tensor) -> Tensor:
        """Prepared pictures [B, 3, h, w], or windows of them [B, T, 3, h, w], to [B, E]."""
        flat = pictures.flatten(0, -4)
        ready = self._processed(flat, do_resize=False, do_center_crop=False, do_convert_rgb=False)
        return self.rows(ready.view(*pictures.shape[:-3], *ready.shape[1:]))

    def _processed(self, pictures: Tensor, **steps: bool) -> Tensor:
        values: Tensor = self.processor(list(pictures), **steps, return_tensors="pt")["pixel_values"]
        # Processors of videos take all pictures for those of one.
        return values.flatten(0, -4)


def load_processor(kind: Any, weights: Weights) -> Any:
    """The processor that the folder's preprocessor file describes; ``kind``'s own settings where weights are random.

    Raises:
        ConfigurationError: no such file in the folder.
    """
    if weights.path is None:
        return kind()
    try:
        return kind.from_pretrained(weights.path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{weights.path}: no preprocessor file can be read there ({_first(error)})") from None


def load_vocabulary(weights: Weights, what: str, **settings: Any) -> Any:
    """The folder's tokenizer; ``what`` names the model in the error, ``settings`` override what the folder says.

    Raises:
        ConfigurationError: random weights, or a folder without a vocabulary.
    """
    if weights.path is None:
        raise ConfigurationError(
            f"{what} needs a vocabulary, which random weights do not have; give a folder with --weights"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(weights.path, local_files_only=True, **settings)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{weights.path}: its vocabulary cannot be read ({_first(error)})") from None
    # Where the files of the vocabulary are absent, transformers makes a tokenizer of the special tokens alone.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise ConfigurationError(f"{weights.path}: no vocabulary there (tokenizer.json, or vocab.json and merges.txt)")
    return tokenizer


def load_model[Model: PreTrainedModel](
    kind: type[Model], weights: Weights, random_config: Callable[[], PretrainedConfig], **settings: Any
) -> Model:
    """A model from a folder in transformers' format, or of random numbers with ``random_config``'s sizes.

    Raises:
        ConfigurationError: no such model in the folder, or weights missing there.
    """
    if weights.path is None:
        if weights.seed is not None:
            torch.manual_seed(weights.seed)
        return _ready(kind(random_config(), **settings))
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = kind.from_pretrained(
            weights.path,
            local_files_only=True,
            output_loading_info=True,
            use_safetensors=True,
            dtype=torch.float32,
            **settings,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigurationError(
            f"{weights.path}: no {kind.__name__} can be loaded from there ({_first(error)})"
        ) from None
    finally:
        transformers_logging.set_verbosity(verbosity)
    model: Model = loaded[0]
    info: dict[str, Any] = loaded[1]
    lacking = sorted([*info["missing_keys"], *(key for key, *_ in info.get("mismatched_keys", ()))])
    if lacking:
        raise ConfigurationError(
            f"{weights.path}: lacks {len(lacking)} weights of a {kind.__name__}, the first {lacking[0]}"
        )
    return _ready(model)


def _ready[Model: PreTrainedModel](model: Model) -> Model:
    model.train(False)
    return model


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
