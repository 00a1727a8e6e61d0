"""CLIP: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.

Projected image embeddings of frames and projected sentence embeddings, both unnormalised, by transformers' own models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

from prvr.extract.backbones._transformers import Pictures, load_model, load_processor, load_vocabulary
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class VideoOptions:
    """Pictures are prepared as the weights' preprocessor file says.

    Args:
        swap_red_and_blue: give the network blue for red, as DL-DKD's released extractor does, which reads pictures with OpenCV.
    """

    swap_red_and_blue: bool = False


@dataclass(frozen=True)
class TextOptions:
    """``max_tokens``: a sentence is cut there, both special tokens counted in."""

    max_tokens: int = 77


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


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Pictures:
    """The image tower."""
    model = load_model(CLIPVisionModelWithProjection, weights, CLIPVisionConfig)
    sha256 = weights.sha256(model.state_dict())
    layers = model.vision_model.encoder.layers
    layers[-1] = _ClassTokenAlone(layers[-1])

    return Pictures(
        model,
        load_processor(CLIPImageProcessor, weights),
        lambda pictures: model(pixel_values=pictures).image_embeds,
        dim=_width(model.config.projection_dim),
        sha256=sha256,
        device=device,
        swap_red_and_blue=options.swap_red_and_blue,
    )


class _ClassTokenAlone(nn.Module):
    """The last layer of the image tower for its class token, since no other is read: the same numbers, and of ViT-B/32 a
    fifteenth less work."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor, attention_mask: None = None, **_: Any) -> Tensor:
        attention = self.layer.self_attn

        def heads(values: Tensor) -> Tensor:
            return values.view(*values.shape[:2], -1, attention.head_dim).transpose(1, 2)

        normed = self.layer.layer_norm1(tokens)
        query, keys, values = attention.q_proj(normed[:, :1]), attention.k_proj(normed), attention.v_proj(normed)
        seen = scaled_dot_product_attention(heads(query), heads(keys), heads(values), scale=attention.scale)
        token = tokens[:, :1] + attention.out_proj(seen.transpose(1, 2).flatten(2))
        found: Tensor = token + self.layer.mlp(self.layer.layer_norm2(token))
        return found


def load_text(weights: Weights, options: TextOptions, device: torch.device) -> ClipSentences:
    """The text tower; raises ConfigurationError for random weights, which have no vocabulary."""
    tokenizer = load_vocabulary(weights, "clip")
    model = load_model(CLIPTextModelWithProjection, weights, CLIPTextConfig)
    sha256 = weights.sha256(model.state_dict())
    return ClipSentences(model, tokenizer, max_tokens=options.max_tokens, sha256=sha256, device=device)


def _width(projection: int | None) -> int:
    if projection is None:
        raise ConfigurationError("these weights have no projection: not a CLIP")
    return projection
