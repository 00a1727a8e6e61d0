"""The tiny models: real formats, the same each time, and they learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionModelWithProjection,
    RobertaModel,
    RobertaTokenizer,
)

from prvr.datasets.corpora import shapes
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.train import tiny


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus")
    shapes.prepare(path, shapes.Options(train=20, test=2, size=32))
    return path


@pytest.fixture(scope="module")
def captions(corpus: Path) -> list[str]:
    return [moment.caption for s in shapes.scenes_of(corpus) if s.split == "train" for moment in s.moments]


@pytest.fixture(scope="module")
def clip(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[float, ...]]:
    path = tmp_path_factory.mktemp("models") / "clip"
    return path, tiny.make_clip(corpus, path, steps=12, seed=0)


@pytest.fixture(scope="module")
def roberta(captions: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[float, ...]]:
    path = tmp_path_factory.mktemp("models") / "roberta"
    return path, tiny.make_roberta(captions, path, steps=12, seed=0)


def test_both_learn(clip: tuple[Path, tuple[float, ...]], roberta: tuple[Path, tuple[float, ...]]) -> None:
    for _, losses in (clip, roberta):
        assert len(losses) == 12
        assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1


@pytest.mark.parametrize("kind", [CLIPModel, CLIPVisionModelWithProjection, CLIPTextModelWithProjection])
def test_clip_loads_whole_and_by_tower(clip: tuple[Path, tuple[float, ...]], kind: type[CLIPModel]) -> None:
    loaded: Any = kind.from_pretrained(clip[0], output_loading_info=True)
    model, info = loaded
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert model.config.projection_dim == tiny.WIDTH
    if kind is CLIPModel:
        assert sum(parameter.numel() for parameter in model.parameters()) < 1_100_000


def test_roberta_loads(roberta: tuple[Path, tuple[float, ...]]) -> None:
    loaded: Any = RobertaModel.from_pretrained(roberta[0], add_pooling_layer=False, output_loading_info=True)
    model, info = loaded
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["unexpected_keys"]
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000


@pytest.mark.parametrize("name", ["clip", "roberta"])
def test_tokenizers_know_the_captions_and_can_read_anything(
    name: str, captions: list[str], request: pytest.FixtureRequest
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(request.getfixturevalue(name)[0])
    assert isinstance(tokenizer, CLIPTokenizer if name == "clip" else RobertaTokenizer)
    for caption in captions:
        ids = tokenizer(caption)["input_ids"]
        assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
        assert tokenizer.decode(ids, skip_special_tokens=True) == caption
    common = max(captions, key=lambda caption: len(caption.split()))
    assert len(tokenizer(common)["input_ids"]) == len(common.split()) + 2  # a token a word
    strange = "zebra über 12 ünïts, 東京"
    ids = tokenizer(strange)["input_ids"][1:-1]
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert str(tokenizer.decode(ids)).replace(" ", "") == strange.replace(" ", "")


def test_a_sentence_is_read_at_its_end_token(clip: tuple[Path, tuple[float, ...]], captions: list[str]) -> None:
    model: Any = CLIPModel.from_pretrained(clip[0])  # in evaluation mode
    tokenizer: Any = AutoTokenizer.from_pretrained(clip[0])
    assert model.config.text_config.eos_token_id == tokenizer.eos_token_id != 2
    short, long = sorted(captions, key=lambda caption: len(caption.split()))[:: len(captions) - 1]
    both = tokenizer([short, long], padding=True, return_tensors="pt")
    with torch.inference_mode():
        output = model.text_model(**both)
        ends = [len(tokenizer(caption)["input_ids"]) - 1 for caption in (short, long)]
        assert ends[0] < ends[1]
        torch.testing.assert_close(output.pooler_output, output.last_hidden_state[[0, 1], ends])
        alone = model.text_model(**tokenizer(short, return_tensors="pt")).pooler_output
    torch.testing.assert_close(alone[0], output.pooler_output[0], rtol=1e-4, atol=1e-5)


def test_pictures_of_any_size_are_prepared(clip: tuple[Path, tuple[float, ...]]) -> None:
    processor = CLIPImageProcessor.from_pretrained(clip[0])
    for size in (32, 96):
        pixels = processor(images=[np.zeros((size, size, 3), np.uint8)], return_tensors="pt")["pixel_values"]
        assert pixels.shape == (1, 3, tiny.PIXELS, tiny.PIXELS)


def test_the_same_seed_gives_the_same_files(corpus: Path, captions: list[str], tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (("one", 0), ("other", 0), ("third", 1)):
        tiny.make_clip(corpus, tmp_path / name / "clip", steps=1, seed=seed)
        tiny.make_roberta(captions, tmp_path / name / "roberta", steps=1, seed=seed)
    files = [
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "other", "third")
    ]
    assert files[0] == files[1]
    assert files[0]["clip/model.safetensors"] != files[2]["clip/model.safetensors"]
    assert files[0]["roberta/model.safetensors"] != files[2]["roberta/model.safetensors"]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_random_weights_are_said_to_be_random(captions: list[str], tmp_path: Path) -> None:
    assert tiny.make_roberta(captions, tmp_path / "random", steps=0, seed=0) == ()
    assert "RANDOM" in (tmp_path / "random" / "README.md").read_text(encoding="utf-8")


def test_what_cannot_be_made_leaves_nothing(corpus: Path, captions: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="captions"):
        tiny.make_roberta([], tmp_path / "roberta")
    with pytest.raises(ConfigurationError, match="steps"):
        tiny.make_clip(corpus, tmp_path / "clip", steps=0)
    with pytest.raises(MissingInput, match=r"moments\.jsonl"):
        tiny.make_clip(tmp_path / "nowhere", tmp_path / "clip")
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigurationError, match="exists"):
        tiny.make_roberta(captions, tmp_path / "there", steps=0)
