"""Word rows are those of TVR's code (the golden), and options say which tokens they are of."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from prvr.extract import backbones, recipes
from prvr.extract.backbones import roberta
from prvr.extract.backbones._transformers import load_vocabulary
from prvr.extract.backbones.roberta import RobertaWords, TextOptions
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build

CPU = torch.device("cpu")
START, PADDING, END = 0, 1, 2
SENTENCES = ["a small red square bounces off the left wall", "two shapes collide"]


def golden_weight(name: str, shape: Sequence[int]) -> Tensor:
    """The golden's number for a weight: its recipe says the uniform numbers, and its rows what became of them."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    uniform = torch.rand(tuple(shape), generator=torch.Generator().manual_seed(seed))
    if name.endswith("LayerNorm.weight"):
        return 0.5 * uniform + 0.75
    return (2 * uniform - 1) * (0.1 if name.endswith(".bias") else (3 / shape[1]) ** 0.5)


def test_the_golden_of_tvrs_selection(shared: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    golden = np.load(shared / "golden" / "extract" / "roberta_words.npz")
    made = json.loads((shared / "golden" / "extract" / "roberta_tiny.json").read_text(encoding="utf-8"))
    model = RobertaModel(RobertaConfig.from_dict(made["config"]), add_pooling_layer=False).train(False)
    model.load_state_dict({name: golden_weight(name, shape) for name, shape in made["shapes"].items()})
    ids, mask = (torch.from_numpy(golden[name]) for name in ("ids", "mask"))
    special = ((ids == START) | (ids == PADDING) | (ids == END)).long()
    tokens = {"input_ids": ids, "attention_mask": mask, "special_tokens_mask": special}
    with torch.inference_mode():
        words = roberta.word_rows(model, tokens, TextOptions())
        last = roberta.word_rows(model, tokens, TextOptions(layer=-1))
        whole = roberta.word_rows(model, tokens, TextOptions(special_tokens=True))
    assert [len(rows) for rows in words] == [4, 1, 6]
    for number, rows in enumerate(words):
        assert np.abs(rows.numpy() - golden[f"words_{number}"]).max() <= 1e-5
        assert np.abs(last[number].numpy() - golden[f"words_{number}"]).max() > 0.1, "another layer is told apart"
        stands = golden["hidden_m2"][number][: mask[number].sum()]
        assert np.abs(whole[number].numpy() - stands).max() <= 1e-5, "with <s> and </s>, but without padding"


@pytest.fixture
def words(roberta_folder: Path) -> RobertaWords:
    return roberta.load_text(Weights("x", roberta_folder, None), TextOptions(), CPU)


def with_options(words: RobertaWords, folder: Path, **changes: object) -> RobertaWords:
    options = replace(words.options, **changes)  # type: ignore[arg-type]
    return roberta.load_text(Weights("x", folder, None), options, CPU)


def test_special_tokens_are_two_more_rows_around_the_same(words: RobertaWords, roberta_folder: Path) -> None:
    whole = with_options(words, roberta_folder, special_tokens=True)
    for without, with_ in zip(words(SENTENCES), whole(SENTENCES), strict=True):
        assert torch.equal(with_[1:-1], without)


def test_a_space_before_the_first_word_makes_it_another_token(words: RobertaWords, roberta_folder: Path) -> None:
    spaced = with_options(words, roberta_folder, prefix_space=True)
    ours, theirs = words(SENTENCES), words([" " + sentence for sentence in SENTENCES])
    for with_space, given, plain in zip(spaced(SENTENCES), theirs, ours, strict=True):
        assert torch.equal(with_space, given)
        assert with_space.shape != plain.shape or not torch.allclose(with_space, plain, atol=1e-3)


def test_the_option_overrides_what_the_folder_says_of_the_space(roberta_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = Path(shutil.copytree(roberta_folder, tmp_path / "spaced"))
    AutoTokenizer.from_pretrained(roberta_folder, add_prefix_space=True).save_pretrained(folder)
    rows, theirs = (
        roberta.load_text(Weights("x", one, None), TextOptions(), CPU)(SENTENCES) for one in (roberta_folder, folder)
    )
    assert all(torch.equal(one, other) for one, other in zip(rows, theirs, strict=True))


def test_a_folder_without_a_vocabulary(roberta_folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        shutil.copy(roberta_folder / name, tmp_path)
    with pytest.raises(ConfigurationError, match="no vocabulary there"):
        roberta.load_text(Weights("x", tmp_path, None), TextOptions(), CPU)
    shutil.copy(roberta_folder / "vocab.json", tmp_path)
    with pytest.raises(ConfigurationError, match="vocabulary cannot be read"):
        roberta.load_text(Weights("x", tmp_path, None), TextOptions(), CPU)


def test_a_vocabulary_of_another_model(roberta_folder: Path) -> None:
    from transformers import RobertaConfig

    with pytest.raises(ConfigurationError, match="and a model that knows 200"):
        roberta.fitting(load_vocabulary(Weights("x", roberta_folder, None), "x"), RobertaConfig(vocab_size=200))


def test_more_tokens_than_positions(words: RobertaWords, roberta_folder: Path) -> None:
    longest = with_options(words, roberta_folder, max_tokens=64)
    assert len(longest(["x " * 200])[0]) == 62
    with pytest.raises(ConfigurationError, match="65 tokens a sentence: the model has positions for 64"):
        with_options(words, roberta_folder, max_tokens=65)


def test_a_sentence_of_special_tokens_alone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_tokens 2"):
        TextOptions(max_tokens=2)


@pytest.mark.parametrize(
    ("name", "weights", "tokens"),
    [
        ("roberta", "FacebookAI/roberta-base", 32),
        ("roberta-base", "FacebookAI/roberta-base", 30),
        ("roberta-large", "FacebookAI/roberta-large", 32),
    ],
)
def test_recipes(name: str, weights: str, tokens: int, roberta_folder: Path) -> None:
    channel = recipes.load(name, {}).channels[0]
    assert (channel.backbone, channel.weights) == ("roberta", weights)
    module = backbones.load(channel.backbone, "text")
    options = build(module.TextOptions, channel.text or {}, where=name)
    assert options == TextOptions(layer=-2, max_tokens=tokens, special_tokens=False, prefix_space=False)
    rows = module.load_text(Weights("x", roberta_folder, None), options, CPU)(["x " * 200])
    assert len(rows[0]) == tokens - 2


def test_subtitles_are_read_by_what_stands_around_them(roberta_folder: Path) -> None:
    weights = Weights("tiny", roberta_folder, None)
    encoder = roberta.load_subtitles(weights, TextOptions(), CPU)
    lines = [SENTENCES[0], SENTENCES[1]]
    both = encoder(lines)
    # In one chunk, they are what they are as one sentence.
    tokens = [token for line in lines for token in encoder.tokenizer(line, add_special_tokens=False)["input_ids"]]
    with torch.inference_mode():
        ids = torch.tensor([[START, *tokens, END]])
        whole = encoder.model(input_ids=ids, output_hidden_states=True).hidden_states[-2][0, 1:-1]
    torch.testing.assert_close(torch.cat(both), whole)
    assert not torch.allclose(both[1], encoder(lines[1:])[0], atol=1e-3), "and another sentence before changes them"
    # A model of 64 positions reads 62 tokens at a time; nothing is lost.
    many = encoder(lines * 20)
    assert [len(rows) for rows in many] == [len(both[0]), len(both[1])] * 20
    assert encoder([]) == [] or encoder([])[0].shape[0] == 0
