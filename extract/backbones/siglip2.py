"""SigLIP 2: Tschannen et al., SigLIP 2: Multilingual Vision-Language Encoders with Improved Semantic Understanding,
Localization, and Dense Features, 2025 (arXiv 2502.14786).

Pooled image embeddings of frames and pooled sentence embeddings, both unnormalised, by transformers' own models. Checkpoints
of a fixed resolution have SigLIP's architecture, and these classes are SigLIP's: those of SigLIP itself load too, but were
trained on other text than ``load_text`` makes. NaFlex checkpoints, of a variable resolution, are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import SiglipImageProcessor, SiglipTextConfig, SiglipTextModel, SiglipVisionConfig, SiglipVisionModel

from prvr.extract.backbones._transformers import Pictures, load_model, load_processor, load_vocabulary
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class VideoOptions:
    """None: pictures are prepared as the weights' preprocessor file says."""


@dataclass(frozen=True)
class TextOptions:
    """``max_tokens``: a sentence is cut there, the one after its end counted in; at least 2."""

    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise ConfigurationError(f"max_tokens {self.max_tokens}: the sentence's end is one of them; give 2 or more")


class SiglipSentences:
    """Sentences to [1, E] each.

    The tokens are those that the network was trained on (google-research/big_vision), which not every tokenizer file of the
    hub says: lower case, none before the sentence, ``<eos>`` after it, then padding up to the network's full length. The
    network has no mask: padding is read, and the embedding is that of the last place.
    """

    def __init__(
        self, model: SiglipTextModel, tokenizer: Any, *, max_tokens: int, sha256: str, device: torch.device
    ) -> None:
        self.model = model
        self.model.to(device)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.length = int(model.config.max_position_embeddings)
        self.max_tokens = min(max_tokens, self.length)
        self.sha256 = sha256
        self.device = device
        self.dim = model.head.out_features

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[str]) -> list[Tensor]:
        """One row a sentence."""
        embeddings: Tensor = self.model(input_ids=self.tokens(sentences).to(self.device)).pooler_output
        return list(embeddings.unsqueeze(1))

    def tokens(self, sentences: Sequence[str]) -> Tensor:
        """Token numbers [Q, positions of the network]."""
        words = self.tokenizer([sentence.lower() for sentence in sentences], add_special_tokens=False)["input_ids"]
        tokens = torch.full((len(words), self.length), self.tokenizer.pad_token_id)
        for row, found in zip(tokens, words, strict=True):
            ended = [*found[: self.max_tokens - 1], self.tokenizer.eos_token_id]
            row[: len(ended)] = torch.tensor(ended)
        return tokens


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Pictures:
    """The image tower; raises ConfigurationError for a folder of something else."""
    model = load_model(SiglipVisionModel, weights, SiglipVisionConfig)
    return Pictures(
        model,
        load_processor(SiglipImageProcessor, weights),
        lambda pictures: model(pixel_values=pictures).pooler_output,
        dim=int(model.config.hidden_size),
        sha256=weights.sha256(model.state_dict()),
        device=device,
    )


def load_text(weights: Weights, options: TextOptions, device: torch.device) -> SiglipSentences:
    """The text tower; raises ConfigurationError for random weights, which have no vocabulary."""
    tokenizer = load_vocabulary(weights, "siglip2")
    model = load_model(SiglipTextModel, weights, SiglipTextConfig)
    sha256 = weights.sha256(model.state_dict())
    return SiglipSentences(model, tokenizer, max_tokens=options.max_tokens, sha256=sha256, device=device)
