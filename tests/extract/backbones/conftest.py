"""Folders of small models, as transformers saves them and the hub has them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks on a shared machine wait for their threads more than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def siglip2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SigLIP 2 folder of a fixed resolution with random weights, and a Gemma vocabulary of letters."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    folder = tmp_path_factory.mktemp("siglip2")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    vocabulary = {token: n for n, token in enumerate([*special, "▁", *"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHI"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": False, "add_eos_token": True, "padding_side": "right"}
    kind |= {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    torch.manual_seed(0)
    text = {**SIZES, "vocab_size": len(vocabulary), "max_position_embeddings": 20, "projection_size": 16}
    ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    vision = {**SIZES, "image_size": 32, "patch_size": 16}
    SiglipModel(SiglipConfig(text_config={**text, **ends}, vision_config=vision)).save_pretrained(folder)
    SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def videomae_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VideoMAE folder with random weights, fine-tuned: with a classifier and windows of 16 pictures."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification, VideoMAEImageProcessor

    folder = tmp_path_factory.mktemp("videomae")
    torch.manual_seed(0)
    config = VideoMAEConfig(
        **SIZES, image_size=32, patch_size=16, num_frames=16, id2label={n: str(n) for n in range(5)}
    )
    VideoMAEForVideoClassification(config).save_pretrained(folder)
    VideoMAEImageProcessor(
        size={"shortest_edge": 32},
        crop_size={"height": 32, "width": 32},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)
    return folder
