"""CLIP, SigLIP 2, VideoMAE and RoBERTa through transformers: nothing is random in silence, and rows are those of
transformers itself."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prvr.extract.backbones import clip, roberta, siglip2, videomae
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
        with pytest.raises(ConfigurationError, match=r"can be loaded from there|vocabulary cannot be read"):
            load()


def test_clip_rows_are_those_of_transformers_own_model(clip_folder: Path) -> None:
    from transformers import CLIPModel, CLIPProcessor

    processor, model = CLIPProcessor.from_pretrained(clip_folder), CLIPModel.from_pretrained(clip_folder).train(False)
    frames = torch.randint(0, 256, (2, 3, 40, 60), dtype=torch.uint8)
    images = clip.load_video(Weights("x", clip_folder, None), clip.VideoOptions(), CPU)
    ours = images(images.prepare(frames))
    sentences = ["a red square", "two shapes collide"]
    words = clip.load_text(Weights("x", clip_folder, None), clip.TextOptions(), CPU)(sentences)
    pictures = [frame.permute(1, 2, 0).numpy() for frame in frames]
    inputs = processor(text=sentences, images=pictures, return_tensors="pt", padding=True)
    with torch.inference_mode():
        output = model(**inputs)
    assert torch.nn.functional.cosine_similarity(ours, output.image_embeds).min() > 1 - 1e-5
    assert torch.nn.functional.cosine_similarity(torch.cat(words), output.text_embeds).min() > 1 - 1e-5


def test_siglip2_rows_are_those_of_transformers_own_model(siglip2_folder: Path) -> None:
    from transformers import AutoTokenizer, SiglipImageProcessor, SiglipModel

    model = SiglipModel.from_pretrained(siglip2_folder).train(False)
    processor, tokenizer = (
        SiglipImageProcessor.from_pretrained(siglip2_folder),
        AutoTokenizer.from_pretrained(siglip2_folder),
    )
    frames = torch.randint(0, 256, (2, 3, 40, 60), dtype=torch.uint8)
    images = siglip2.load_video(Weights("x", siglip2_folder, None), siglip2.VideoOptions(), CPU)
    # "ab" * 30 is longer than the network's 20 places: the sentence's end is kept there.
    sentences = ["a red square", "ab" * 30, ""]
    words = siglip2.load_text(Weights("x", siglip2_folder, None), siglip2.TextOptions(), CPU)
    tokens = tokenizer(sentences, padding="max_length", max_length=20, truncation=True, return_tensors="pt")[
        "input_ids"
    ]
    assert torch.equal(words.tokens(sentences), tokens) and tokens[1, -1] == 1 and tokens[0, -1] == 0
    with torch.inference_mode():
        pixels = processor(list(frames), return_tensors="pt")["pixel_values"]
        theirs = model.vision_model(pixel_values=pixels).pooler_output
        assert torch.allclose(images(images.prepare(frames)), theirs, atol=1e-5)
        assert torch.allclose(torch.cat(words(sentences)), model.text_model(input_ids=tokens).pooler_output, atol=1e-5)


def test_siglip2_reads_lower_case_and_a_sentences_end(siglip2_folder: Path) -> None:
    weights = Weights("x", siglip2_folder, None)
    words = siglip2.load_text(weights, siglip2.TextOptions(max_tokens=4), CPU)
    assert words.tokens(["ABCD e"])[0, :5].tolist() == [*words.tokens(["abc"])[0, :3].tolist(), 1, 0]
    with pytest.raises(ConfigurationError, match="give 2 or more"):
        siglip2.TextOptions(max_tokens=1)


def test_siglip2_of_a_variable_resolution_is_refused(tmp_path: Path) -> None:
    from transformers import Siglip2Config, Siglip2Model

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 10, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    Siglip2Model(Siglip2Config(text_config=text, vision_config=sizes)).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="SiglipVisionModel"):
        siglip2.load_video(Weights("x", tmp_path, None), siglip2.VideoOptions(), CPU)


def test_videomae_rows_are_what_its_classifier_reads(videomae_folder: Path) -> None:
    from transformers import VideoMAEForVideoClassification, VideoMAEImageProcessor

    model = VideoMAEForVideoClassification.from_pretrained(videomae_folder).train(False)
    frames = torch.randint(0, 256, (32, 3, 40, 60), dtype=torch.uint8)
    windows = videomae.load_video(Weights("x", videomae_folder, None), videomae.VideoOptions(), CPU)
    rows = windows(windows.prepare(frames).view(2, 16, 3, 32, 32))
    processor: Any = VideoMAEImageProcessor.from_pretrained(videomae_folder)
    inputs = processor([list(frames[:16]), list(frames[16:])], return_tensors="pt")
    with torch.inference_mode():
        assert torch.allclose(model.classifier(model.fc_norm(rows)), model(**inputs).logits, atol=1e-5)
    with pytest.raises(ConfigurationError, match="windows of 8 pictures: these weights read 16"):
        windows(windows.prepare(frames[:8])[None])


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
