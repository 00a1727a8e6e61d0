"""Small models in the real formats, made without training, and a folder of small videos."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

CAPTIONS = ["a small red square bounces off the left wall", "a large green circle appears", "two shapes collide"]


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP folder as transformers saves one, with random weights and a real vocabulary."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    folder = tmp_path_factory.mktemp("clip")
    words = sorted({word for caption in CAPTIONS for word in caption.split()})
    letters = sorted({letter for word in words for letter in word})
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    kind = {"tokenizer_class": "CLIPTokenizer", "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
    kind |= {"unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={
            **sizes,
            "projection_dim": 12,
            "vocab_size": len(tokens),
            "max_position_embeddings": 77,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        vision_config={**sizes, "projection_dim": 12, "image_size": 32, "patch_size": 16},
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa folder as transformers saves one, with random weights and a real vocabulary."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    folder = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(CAPTIONS, vocab_size=300, special_tokens=special)
    tokenizer.save_model(str(folder))
    RobertaTokenizer.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def videos(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Six readable videos of 2 to 4 s, one without content, one text file."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for number in range(6):
        make_video(folder / f"v{number}.mp4", [100 * (n + number) for n in range(20 + 4 * number)])
    (folder / "broken.mp4").write_bytes(b"not a video")
    (folder / "notes.txt").touch()
    return folder
