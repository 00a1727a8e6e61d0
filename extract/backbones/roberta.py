"""RoBERTa word features: Liu et al., RoBERTa: A Robustly Optimized BERT Pretraining Approach, 2019 (arXiv 1907.11692).

As TVR's authors take them: a hidden layer's rows of the word pieces, without those of ``<s>`` and ``</s>``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, RobertaConfig, RobertaModel

from prvr.extract.backbones._transformers import load_model
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class TextOptions:
    """``layer``: index into the hidden states, -1 the last. ``max_tokens``: a sentence is cut there, special tokens counted."""

    layer: int = -2
    max_tokens: int = 32


class RobertaWords:
    """Sentences to [W, E] each."""

    def __init__(
        self, model: RobertaModel, tokenizer: Any, options: TextOptions, *, sha256: str, device: torch.device
    ) -> None:
        layers = model.config.num_hidden_layers + 1
        if not -layers <= options.layer < layers:
            raise ConfigurationError(f"layer {options.layer}: the model has {layers} hidden states")
        self.model = model
        self.model.to(device)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.options = options
        self.sha256 = sha256
        self.device = device
        self.dim = int(model.config.hidden_size)

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[str]) -> list[Tensor]:
        """One row a word piece."""
        tokens = self.tokenizer(
            list(sentences),
            padding=True,
            truncation=True,
            max_length=self.options.max_tokens,
            return_special_tokens_mask=True,
            return_tensors="pt",
        ).to(self.device)
        output = self.model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], output_hidden_states=True
        )
        words = (tokens["special_tokens_mask"] == 0) & (tokens["attention_mask"] == 1)
        rows = output.hidden_states[self.options.layer]
        return [row[mask] for row, mask in zip(rows, words, strict=True)]


def load_text(weights: Weights, options: TextOptions, device: torch.device) -> RobertaWords:
    """The encoder and its vocabulary."""
    if weights.path is None:
        raise ConfigurationError(
            "roberta needs a vocabulary, which random weights do not have; give a folder with --weights"
        )
    model = load_model(RobertaModel, weights, RobertaConfig, add_pooling_layer=False)
    tokenizer = AutoTokenizer.from_pretrained(weights.path)
    return RobertaWords(model, tokenizer, options, sha256=weights.sha256(model.state_dict()), device=device)
