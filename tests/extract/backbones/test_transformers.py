"""CLIP and RoBERTa through transformers: nothing is random in silence, and rows are those of transformers itself."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prvr.extract.backbones import clip, roberta
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError

CPU = torch.device("cpu")


def test_a_weight_that_the_file_lacks_is_an_error(clip_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clip_folder, tmp_path / "clip"))
    state = load_file(folder / "model.safetensors")
    lost = next(name for name in state if name.startswith("vision_model.encoder"))
    save_file(
        {name: value for name, value in state.items() if name != lost}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ConfigurationError, match=f"lacks 1 weights.*{lost}"):
        clip.load_video(Weights("x", folder, None), clip.VideoOptions(), CPU)
    clip.load_text(Weights("x", folder, None), clip.TextOptions(), CPU)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    for load in (
        lambda: clip.load_video(Weights("x", tmp_path, None), clip.VideoOptions(), CPU),
        lambda: roberta.load_text(Weights("x", tmp_path, None), roberta.TextOptions(), CPU),
    ):
        with pytest.raises(ConfigurationError, match="can be loaded from there"):
            load()


def test_clip_rows_are_those_of_transformers_own_model(clip_folder: Path) -> None:
    from transformers import CLIPModel, CLIPProcessor

    processor, model = CLIPProcessor.from_pretrained(clip_folder), CLIPModel.from_pretrained(clip_folder).train(False)
    frames = torch.randint(0, 256, (2, 3, 40, 60), dtype=torch.uint8)
    ours = clip.load_video(Weights("x", clip_folder, None), clip.VideoOptions(), CPU)(frames)
    sentences = ["a red square", "two shapes collide"]
    words = clip.load_text(Weights("x", clip_folder, None), clip.TextOptions(), CPU)(sentences)
    pictures = [frame.permute(1, 2, 0).numpy() for frame in frames]
    inputs = processor(text=sentences, images=pictures, return_tensors="pt", padding=True)
    with torch.inference_mode():
        output = model(**inputs)
    assert torch.nn.functional.cosine_similarity(ours, output.image_embeds).min() > 1 - 1e-5
    assert torch.nn.functional.cosine_similarity(torch.cat(words), output.text_embeds).min() > 1 - 1e-5


def test_words_without_special_tokens_of_the_layer_asked_for(roberta_folder: Path) -> None:
    from transformers import AutoTokenizer, RobertaModel

    model, tokenizer = (
        RobertaModel.from_pretrained(roberta_folder).train(False),
        AutoTokenizer.from_pretrained(roberta_folder),
    )
    sentence = "a small red square bounces"
    for layer in (-2, -1, 0):
        words = roberta.load_text(Weights("x", roberta_folder, None), roberta.TextOptions(layer=layer), CPU)
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        assert ids[0, 0] == 0 and ids[0, -1] == 2
        with torch.inference_mode():
            states = model(ids, output_hidden_states=True).hidden_states
        assert torch.allclose(words([sentence])[0], states[layer][0, 1:-1], atol=1e-5)
    with pytest.raises(ConfigurationError, match="4 hidden states"):
        roberta.load_text(Weights("x", roberta_folder, None), roberta.TextOptions(layer=-9), CPU)


def test_max_tokens_counts_the_special_ones(roberta_folder: Path) -> None:
    words = roberta.load_text(Weights("x", roberta_folder, None), roberta.TextOptions(max_tokens=7), CPU)
    assert len(words(["a small red square bounces off the left wall"])[0]) == 5
