"""RoBERTa word features: Liu et al., RoBERTa: A Robustly Optimized BERT Pretraining Approach, 2019 (arXiv 1907.11692).

As TVR's authors take them: a hidden layer's rows of the word pieces, without those of ``<s>`` and ``</s>``
(jayleicn/TVRetrieval, utils/text_feature/lm_finetuning_on_single_sentences.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, RobertaConfig, RobertaModel

from prvr.extract.backbones._transformers import load_model, load_vocabulary
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class TextOptions:
    """Which rows of which tokens.

    Args:
        layer: index into the hidden states, of which the first are the embeddings; -1 the last.
        max_tokens: a sentence is cut there, ``<s>`` and ``</s>`` counted.
        special_tokens: keep the rows of ``<s>`` and ``</s>``.
        prefix_space: read the first word as if a space stood before it; it is another token then.

    Raises:
        ConfigurationError: ``max_tokens`` that leave no word.
    """

    layer: int = -2
    max_tokens: int = 32
    special_tokens: bool = False
    prefix_space: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 3:
            raise ConfigurationError(f"max_tokens {self.max_tokens}: <s> and </s> are two of them; give 3 or more")


class RobertaWords:
    """Sentences to [W, E] each.

    Raises:
        ConfigurationError: a layer, or a number of tokens, that the model does not have.
    """

    def __init__(
        self, model: RobertaModel, tokenizer: Any, options: TextOptions, *, sha256: str, device: torch.device
    ) -> None:
        layers = model.config.num_hidden_layers + 1
        if not -layers <= options.layer < layers:
            raise ConfigurationError(f"layer {options.layer}: the model has {layers} hidden states")
        check_length(options.max_tokens, model.config)
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
        return word_rows(self.model, tokens, self.options)


def word_rows(model: RobertaModel, tokens: Mapping[str, Tensor], options: TextOptions) -> list[Tensor]:
    """The rows [W, E] of each sentence that ``options`` ask for.

    Args:
        tokens: ``input_ids``, ``attention_mask`` and ``special_tokens_mask`` [B, W + 2 + padding], integers.
    """
    output = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], output_hidden_states=True)
    kept = tokens["attention_mask"] == 1
    if not options.special_tokens:
        kept &= tokens["special_tokens_mask"] == 0
    return [row[mask] for row, mask in zip(output.hidden_states[options.layer], kept, strict=True)]


def load_text(weights: Weights, options: TextOptions, device: torch.device) -> RobertaWords:
    """The encoder and its vocabulary.

    Raises:
        ConfigurationError: random weights, a folder that lacks weights or a vocabulary, or options that do not fit.
    """
    vocabulary = load_vocabulary(weights, "roberta", add_prefix_space=options.prefix_space)
    model = load_model(RobertaModel, weights, RobertaConfig, add_pooling_layer=False)
    tokenizer = fitting(vocabulary, model.config)
    return RobertaWords(model, tokenizer, options, sha256=weights.sha256(model.state_dict()), device=device)


def fitting(tokenizer: Any, config: PretrainedConfig) -> Any:
    """The same tokenizer; raises ConfigurationError where it has more words than the model has embeddings for."""
    if len(tokenizer) > config.vocab_size:
        raise ConfigurationError(f"a vocabulary of {len(tokenizer)} tokens, and a model that knows {config.vocab_size}")
    return tokenizer


def check_length(tokens: int, config: PretrainedConfig) -> None:
    """Raises ConfigurationError where the model has no positions for so many tokens."""
    # Positions count from after the padding's id.
    longest = config.max_position_embeddings - config.pad_token_id - 1
    if tokens > longest:
        raise ConfigurationError(f"{tokens} tokens a sentence: the model has positions for {longest}")
