"""What every backbone keeps, over ``names()``."""

from pathlib import Path
from typing import Any

import pytest
import torch

from prvr.extract import backbones, recipes
from prvr.extract.weights import Weights
from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build

VIDEO = [name for name in backbones.names() if hasattr(registry.load(backbones.__name__, name, kind="x"), "load_video")]
TEXT = [name for name in backbones.names() if hasattr(registry.load(backbones.__name__, name, kind="x"), "load_text")]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(clip_folder: Path, roberta_folder: Path) -> dict[str, Path]:
    """Weights of the backbones that need files; the others are made of random numbers."""
    return {"clip": clip_folder, "roberta": roberta_folder}


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[tuple[str, str], Any]:
    """Every backbone of every stream, with the settings of its default recipe."""
    found = {}
    for stream, names in (("video", VIDEO), ("text", TEXT)):
        for name in names:
            module = backbones.load(name, stream)
            weights = Weights("x", folders.get(name), None if name in folders else 0)
            recipe = recipes.load(name, {})
            kind, settings = (
                (module.VideoOptions, recipe.video) if stream == "video" else (module.TextOptions, recipe.text)
            )
            loader = module.load_video if stream == "video" else module.load_text
            found[stream, name] = loader(weights, build(kind, settings or {}, where=name), CPU)
    return found


@pytest.mark.parametrize("name", backbones.names())
def test_every_backbone_has_a_default_recipe_for_its_streams(name: str) -> None:
    recipe = recipes.load(name, {})
    assert recipe.backbone == name and recipe.weights
    assert (recipe.video is not None, recipe.text is not None) == (name in VIDEO, name in TEXT)


@pytest.mark.parametrize("name", VIDEO)
def test_pictures_become_rows(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["video", name]
    frames = torch.randint(0, 256, (3, 3, 50, 70), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = backbone(frames)
    assert rows.shape == (3, backbone.dim) and rows.dtype == torch.float32 and torch.isfinite(rows).all()
    assert torch.allclose(backbone(frames[1:2]), rows[1:2], atol=1e-4), "a row does not depend on its neighbours"
    assert not torch.allclose(rows[0], rows[1]), "a row depends on its picture"
    assert torch.equal(backbone(frames), rows)


@pytest.mark.parametrize("name", TEXT)
def test_sentences_become_rows(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["text", name]
    sentences = ["a red square", "a small green circle bounces off the left wall", "x " * 200]
    rows = backbone(sentences)
    assert len(rows) == 3 and all(one.ndim == 2 and one.shape[1] == backbone.dim and len(one) for one in rows)
    assert torch.allclose(backbone(sentences[:1])[0], rows[0], atol=1e-5), "padding changes nothing"


@pytest.mark.parametrize("name", VIDEO)
def test_another_seed_gives_other_weights_and_another_hash(name: str, folders: dict[str, Path]) -> None:
    if name == "clip":
        pytest.skip("clip's random weights are of the full size; the file's are tested instead")
    module = backbones.load(name, "video")
    one, same, other = (module.load_video(Weights("r", None, seed), module.VideoOptions(), CPU) for seed in (0, 0, 1))
    assert one.sha256 == same.sha256 != other.sha256


@pytest.mark.parametrize("name", TEXT)
def test_random_text_weights_have_no_vocabulary(name: str) -> None:
    module = backbones.load(name, "text")
    with pytest.raises(ConfigurationError, match="vocabulary"):
        module.load_text(Weights("random:0", None, 0), module.TextOptions(), CPU)


def test_a_stream_that_a_backbone_does_not_serve() -> None:
    with pytest.raises(ConfigurationError, match="'resnet' makes no text features"):
        backbones.load("resnet", "text")
