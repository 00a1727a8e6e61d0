"""From a recipe's channel to the backbone that computes it."""

from dataclasses import asdict
from typing import Any

import torch

from prvr.extract import backbones
from prvr.extract.recipes import Channel
from prvr.extract.weights import Weights
from prvr.manifests.settings import build


def make(stream: str, channel: Channel, weights: Weights, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """A channel's backbone for a stream, with the options that it was made with.

    Raises:
        ConfigurationError: options that the backbone refuses, or weights that do not fit.
    """
    module = backbones.load(channel.backbone, stream)
    kind = module.VideoOptions if stream == "video" else module.TextOptions
    settings = channel.video if stream == "video" else channel.text
    options = build(kind, settings or {}, where=f"{channel.name}.{stream}")
    return getattr(module, f"load_{stream}")(weights, options, device), asdict(options)
