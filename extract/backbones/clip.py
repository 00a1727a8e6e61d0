"""CLIP: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.

Projected image embeddings of frames and projected sentence embeddings, both unnormalised, by transformers' own models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

from prvr.extract.backbones._transformers import load_model
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class VideoOptions:
    """None: pictures are prepared as the weights' preprocessor file says."""


@dataclass(frozen=True)
class TextOptions:
    """``max_tokens``: a sentence is cut there, both special tokens counted in."""

    max_tokens: int = 77


class ClipFrames:
    """[N, 3, H, W] uint8 pictures to [N, E]."""

    def __init__(
        self, model: CLIPVisionModelWithProjection, processor: CLIPImageProcessor, *, sha256: str, device: torch.device
    ) -> None:
        self.model = model
        self.model.to(device)  # type: ignore[arg-type]
        self.processor = processor
        self.sha256 = sha256
        self.device = device
        self.dim = _width(model.config.projection_dim)

    def prepare(self, frames: Tensor) -> Tensor:
        """[N, 3, H, W] uint8 to [N, 3, h, w] uint8: resized and cropped."""
        sized = self.processor(list(frames.to(self.device)), do_rescale=False, do_normalize=False, return_tensors="pt")
        pictures: Tensor = sized["pixel_values"]
        return pictures

    @torch.inference_mode()
    def __call__(self, pictures: Tensor) -> Tensor:
        """Prepared pictures [B, 3, h, w] to [B, E]."""
        ready = self.processor(
            pictures, do_resize=False, do_center_crop=False, do_convert_rgb=False, return_tensors="pt"
        )
        rows: Tensor = self.model(pixel_values=ready["pixel_values"]).image_embeds
        return rows


class ClipSentences:
    """Sentences to [1, E] each."""

    def __init__(
        self, model: CLIPTextModelWithProjection, tokenizer: Any, *, max_tokens: int, sha256: str, device: torch.device
    ) -> None:
        self.model = model
        self.model.to(device)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.max_tokens = min(max_tokens, model.config.max_position_embeddings)
        self.sha256 = sha256
        self.device = device
        self.dim = _width(model.config.projection_dim)

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[str]) -> list[Tensor]:
        """One row a sentence."""
        tokens = self.tokenizer(
            list(sentences), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt"
        ).to(self.device)
        embeddings = self.model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).text_embeds
        return list(embeddings.unsqueeze(1))


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> ClipFrames:
    """The image tower."""
    model = load_model(CLIPVisionModelWithProjection, weights, CLIPVisionConfig)
    processor = CLIPImageProcessor() if weights.path is None else CLIPImageProcessor.from_pretrained(weights.path)
    return ClipFrames(model, processor, sha256=weights.sha256(model.state_dict()), device=device)


def load_text(weights: Weights, options: TextOptions, device: torch.device) -> ClipSentences:
    """The text tower."""
    if weights.path is None:
        raise ConfigurationError(
            "clip sentences need a vocabulary, which random weights do not have; give a folder with --weights"
        )
    model = load_model(CLIPTextModelWithProjection, weights, CLIPTextConfig)
    tokenizer = AutoTokenizer.from_pretrained(weights.path)
    sha256 = weights.sha256(model.state_dict())
    return ClipSentences(model, tokenizer, max_tokens=options.max_tokens, sha256=sha256, device=device)


def _width(projection: int | None) -> int:
    if projection is None:
        raise ConfigurationError("these weights have no projection: not a CLIP")
    return projection
