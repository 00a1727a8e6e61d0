"""What every backbone keeps, over ``names()``."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prvr.extract import backbones, recipes
from prvr.extract.recipes import Channel
from prvr.extract.weights import Weights
from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build

VIDEO = [name for name in backbones.names() if hasattr(registry.load(backbones.__name__, name, kind="x"), "load_video")]
TEXT = [name for name in backbones.names() if hasattr(registry.load(backbones.__name__, name, kind="x"), "load_text")]
CPU = torch.device("cpu")

SMALL = {"framing": {"size": [64, 64]}}
"""Changes to the settings of those whose pictures may be of any size, to save time."""
FROM_FILES = ("clip", "siglip2", "videomae", "roberta")
"""Those whose random weights are of the full size, or none: the others' are made of random numbers."""


def channel(name: str) -> Channel:
    return recipes.load(name, {}).channels[0]


@pytest.fixture(scope="module")
def folders(clip_folder: Path, siglip2_folder: Path, videomae_folder: Path, roberta_folder: Path) -> dict[str, Path]:
    return dict(zip(FROM_FILES, (clip_folder, siglip2_folder, videomae_folder, roberta_folder), strict=True))


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[tuple[str, str], Any]:
    """Every backbone of every stream, with the settings of its default recipe, or of a cheaper one."""
    found = {}
    for stream, names in (("video", VIDEO), ("text", TEXT)):
        for name in names:
            module = backbones.load(name, stream)
            weights = Weights("x", folders.get(name), None if name in folders else 0)
            kind = module.VideoOptions if stream == "video" else module.TextOptions
            settings = dict((channel(name).video if stream == "video" else channel(name).text) or {})
            if "framing" in settings:
                settings |= SMALL
            if "tap" in kind.__dataclass_fields__:
                settings["tap"] = "global"
            loader = module.load_video if stream == "video" else module.load_text
            found[stream, name] = loader(weights, build(kind, settings, where=name), CPU)
    return found


def rows_of_pictures(name: str, backbone: Any, rows: int, *, seed: int = 0) -> Tensor:
    """Prepared pictures [B, 3, h, w], or windows [B, T, 3, h, w] of the recipe's length, each row another brightness."""
    window = channel(name).window
    length = window.length if window else 1
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, 256, (rows, length, 3, 50, 70), dtype=torch.uint8, generator=generator)
    frames //= torch.arange(1, rows + 1, dtype=torch.uint8).view(-1, 1, 1, 1, 1)
    pictures: Tensor = backbone.prepare(frames.flatten(0, 1))
    return pictures.view(rows, length, *pictures.shape[1:]) if window else pictures


@pytest.mark.parametrize("name", backbones.names())
def test_every_backbone_has_a_default_recipe_for_its_streams(name: str) -> None:
    recipe = recipes.load(name, {})
    assert recipe.backbone == name and recipe.about and channel(name).weights
    assert (recipe.serves("video"), recipe.serves("text")) == (name in VIDEO, name in TEXT)


@pytest.mark.parametrize("name", VIDEO)
def test_pictures_of_all_shapes_are_prepared_to_one(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["video", name]
    shapes = set()
    for height, width in ((50, 70), (90, 40), (64, 64)):
        frames = torch.randint(0, 256, (3, 3, height, width), dtype=torch.uint8)
        pictures = backbone.prepare(frames)
        assert pictures.dtype == torch.uint8 and len(pictures) == 3
        shapes.add(pictures.shape)
    assert len(shapes) == 1


@pytest.mark.parametrize("name", VIDEO)
def test_pictures_become_rows(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["video", name]
    pictures = rows_of_pictures(name, backbone, 2)
    rows = backbone(pictures)
    assert rows.shape == (2, backbone.dim) and rows.dtype == torch.float32 and torch.isfinite(rows).all()
    assert torch.allclose(backbone(pictures[1:]), rows[1:], atol=1e-4 * rows.abs().max()), (
        "nor on the batch's size, much"
    )
    assert not torch.allclose(rows[0], rows[1], rtol=1e-3), "a row depends on its pictures"


@pytest.mark.parametrize("name", VIDEO)
def test_a_rows_bits_do_not_depend_on_its_place_or_neighbours(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["video", name]
    pictures = rows_of_pictures(name, backbone, 4)
    rows = backbone(pictures)
    for order in ([2, 0, 3, 1], [3, 3, 3, 0]):
        assert torch.equal(backbone(pictures[order]), rows[order])


@pytest.mark.parametrize("name", [name for name in VIDEO if channel(name).window])
def test_every_picture_of_a_window_counts(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["video", name]
    windows = rows_of_pictures(name, backbone, 1)
    length = windows.shape[1]
    changed = windows.repeat(2, 1, 1, 1, 1)
    changed[0, 0], changed[1, length - 1] = 0, 0
    row, (first, last) = backbone(windows)[0], backbone(changed)
    assert not torch.allclose(row, first, rtol=1e-4) and not torch.allclose(row, last, rtol=1e-4)
    with pytest.raises(ConfigurationError, match="windows"):
        backbone(windows[0])


@pytest.mark.parametrize("name", TEXT)
def test_sentences_become_rows(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    backbone = loaded["text", name]
    sentences = ["a red square", "a small green circle bounces off the left wall", "x " * 200]
    rows = backbone(sentences)
    assert len(rows) == 3 and all(one.ndim == 2 and one.shape[1] == backbone.dim and len(one) for one in rows)
    assert torch.allclose(backbone(sentences[:1])[0], rows[0], atol=1e-5), "padding changes nothing"


@pytest.mark.parametrize("name", [name for name in VIDEO if name not in FROM_FILES])
def test_another_seed_gives_other_weights_and_another_hash(name: str, loaded: dict[tuple[str, str], Any]) -> None:
    module = backbones.load(name, "video")
    # What the same seed gives is tried with the lightest ones alone, to save time.
    for seed in (0, 1) if name in ("i3d", "x3d") else (1,):
        made = module.load_video(Weights("r", None, seed), module.VideoOptions(), CPU)
        assert (made.sha256 == loaded["video", name].sha256) == (seed == 0)


@pytest.mark.parametrize("name", TEXT)
def test_random_text_weights_have_no_vocabulary(name: str) -> None:
    module = backbones.load(name, "text")
    with pytest.raises(ConfigurationError, match="vocabulary"):
        module.load_text(Weights("random:0", None, 0), module.TextOptions(), CPU)


@pytest.mark.parametrize("name", [name for name in VIDEO if name in FROM_FILES])
def test_a_folder_without_a_preprocessor_file(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(folders[name] / file)
    module = backbones.load(name, "video")
    with pytest.raises(ConfigurationError, match="no preprocessor file"):
        module.load_video(Weights("x", tmp_path, None), module.VideoOptions(), CPU)


@pytest.mark.parametrize("name", TEXT)
def test_a_folder_without_a_vocabulary(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(folders[name] / file)
    module = backbones.load(name, "text")
    with pytest.raises(ConfigurationError, match="vocabulary"):
        module.load_text(Weights("x", tmp_path, None), module.TextOptions(), CPU)


def test_a_stream_that_a_backbone_does_not_serve() -> None:
    with pytest.raises(ConfigurationError, match="'resnet' makes no text features"):
        backbones.load("resnet", "text")
