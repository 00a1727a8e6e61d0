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

CHUNK = 256
"""Tokens of subtitles that are read together."""


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


class RobertaSubtitles(RobertaWords):
    """The lines of one video's subtitles to [W, E] each, by what stands around them: all their tokens in a row are cut into
    sentences of ``CHUNK`` tokens, ``<s>`` and ``</s>`` counted, as TVR's authors do (of a smaller model, as many as it takes).
    """

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[str]) -> list[Tensor]:
        """One row a word piece; none of ``<s>`` and ``</s>``, whose rows belong to no line."""
        lines = [self.tokenizer(line, add_special_tokens=False)["input_ids"] for line in sentences]
        tokens = torch.tensor([token for line in lines for token in line], dtype=torch.long, device=self.device)
        start, end = (
            tokens.new_tensor([token]) for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        )
        rows = [tokens.new_zeros((0, self.dim), dtype=torch.float32)]
        for chunk in torch.split(tokens, min(CHUNK, longest(self.model.config)) - 2):
            if len(chunk):
                ids = torch.cat([start, chunk, end])[None]
                states = self.model(input_ids=ids, output_hidden_states=True).hidden_states
                rows.append(states[self.options.layer][0, 1:-1])
        return list(torch.split(torch.cat(rows), [len(line) for line in lines]))


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
    """The encoder of captions.

    Raises:
        ConfigurationError: random weights, a folder that lacks weights or a vocabulary, or options that do not fit.
    """
    return _load(RobertaWords, weights, options, device)


def load_subtitles(weights: Weights, options: TextOptions, device: torch.device) -> RobertaSubtitles:
    """The encoder of subtitles; raises as ``load_text`` does."""
    return _load(RobertaSubtitles, weights, options, device)


def _load[R: RobertaWords](kind: type[R], weights: Weights, options: TextOptions, device: torch.device) -> R:
    vocabulary = load_vocabulary(weights, "roberta", add_prefix_space=options.prefix_space)
    model = load_model(RobertaModel, weights, RobertaConfig, add_pooling_layer=False)
    tokenizer = fitting(vocabulary, model.config)
    return kind(model, tokenizer, options, sha256=weights.sha256(model.state_dict()), device=device)


def fitting(tokenizer: Any, config: PretrainedConfig) -> Any:
    """The same tokenizer; raises ConfigurationError where it has more words than the model has embeddings for."""
    if len(tokenizer) > config.vocab_size:
        raise ConfigurationError(f"a vocabulary of {len(tokenizer)} tokens, and a model that knows {config.vocab_size}")
    return tokenizer


def check_length(tokens: int, config: PretrainedConfig) -> None:
    """Raises ConfigurationError where the model has no positions for so many tokens."""
    if tokens > longest(config):
        raise ConfigurationError(f"{tokens} tokens a sentence: the model has positions for {longest(config)}")


def longest(config: PretrainedConfig) -> int:
    """Tokens that the model has positions for; they count from after the padding's id."""
    return int(config.max_position_embeddings - config.pad_token_id - 1)
