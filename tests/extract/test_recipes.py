"""Recipes are data: each is whole, says what it is, and what it does is recorded."""

from pathlib import Path

import pytest
import torch

from prvr.extract import backbones, recipes
from prvr.extract.backbones import clip
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.manifests.settings import build


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_whole(name: str) -> None:
    recipe = recipes.load(name, {})
    assert recipe.about and len(recipe.about) < 100
    assert recipe.serves("video") or recipe.serves("text")
    assert recipes.text(name).startswith("#"), "a reader is told what it is, and what is not established"
    for channel in recipe.channels:
        for stream, kind in (("video", "VideoOptions"), ("text", "TextOptions")):
            settings = getattr(channel, stream)
            if settings is not None:
                build(getattr(backbones.load(channel.backbone, stream), kind), settings, where=name)
        assert all(one.url.startswith("https://") and one.licence for one in channel.published.values())


def test_a_recipe_knows_the_weights_of_its_backbones_default() -> None:
    for name, weights in (("tvr-resnet152", "resnet152.imagenet1k_v1"), ("charades-i3d", "i3d.charades")):
        (channel,) = recipes.load(name, {}).channels
        assert channel.weights == weights and weights in channel.published


def test_tvr_joins_its_halves_and_their_settings_reach_them() -> None:
    recipe = recipes.load("tvr", {"tvr-i3d": {"window": {"tail": "hold"}}})
    assert recipe.backbone == "resnet+i3d" and recipe.normalise == "l2" and not recipe.serves("text")
    assert recipe.channels[1].window is not None and recipe.channels[1].window.tail == "hold"
    plain = recipes.load("tvr", {})
    assert recipe.settings("video", [{}, {}]) != plain.settings("video", [{}, {}])


def test_another_rate_is_for_every_channel() -> None:
    recipe = recipes.load("tvr", {}, over={"sampling": {"fps": 25.0}})
    assert [channel.sampling.fps for channel in recipe.channels] == [25.0, 25.0]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tvr-i3d", {"windw": {}}, "window"),
        ("tvr-i3d", {"window": {"length": 0}}, "at least 1"),
        ("tvr-i3d", {"sampling": {"fps": "fast"}}, "sampling"),
        ("tvr", {"join": ["tvr-resnet152", "nothing"]}, "unknown recipe 'nothing'"),
        ("tvr", {"pool": {}}, "unknown setting 'tvr.pool'"),
        ("clip", {"normalise": "l3"}, "normalise"),
    ],
)
def test_what_a_recipe_refuses(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigurationError, UnknownName), match=message):
        recipes.load(name, {name: settings})


def test_blue_for_red_as_released(clip_folder: Path) -> None:
    pictures = torch.randint(0, 256, (4, 3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    right, wrong = (
        clip.load_video(Weights("w", clip_folder, None), clip.VideoOptions(swap_red_and_blue=swap), torch.device("cpu"))
        for swap in (False, True)
    )
    assert torch.allclose(wrong(wrong.prepare(pictures)), right(right.prepare(pictures.flip(1))), atol=1e-6)
    assert not torch.allclose(wrong(wrong.prepare(pictures)), right(right.prepare(pictures)), atol=1e-3)
