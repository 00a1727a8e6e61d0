"""Loading of transformers' models, strictly: a weight that the files lack is an error, never a random number."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


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
