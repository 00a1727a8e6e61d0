"""Options that several models check alike."""

from typing import Any

import pytest

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train import models


@pytest.mark.parametrize("name", ["ms-sl", "gmmformer", "gmmformer-v2", "amdnet"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 30}, "hidden 30 does not divide into 4"),
        ({"dropout": 1.0}, r"dropout is 1.0, but must be in \[0, 1\)"),
        ({"clips": 0}, "clips is 0, but must be at least 1"),
        ({"initializer_range": -0.1}, "initializer_range is -0.1, but must be finite and not negative"),
        ({"initializer_range": float("nan")}, "initializer_range is nan"),
        ({"clips": 200}, "clips 200 must not exceed max_frames 128"),
    ],
)
def test_options_out_of_range_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: {message}"):
        models.load(name).Options(**settings)


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("ms-sl", "paper, released"),
        ("gmmformer", "released"),
        ("gmmformer-v2", "released"),
        ("amdnet", "paper, released"),
    ],
)
def test_a_variant_that_does_not_exist_names_those_that_do(name: str, variants: str) -> None:
    with pytest.raises(UnknownName, match=f"variant of {name} 'newest': known: {variants}"):
        models.load(name).Options(variant="newest")


def test_options_of_one_model() -> None:
    with pytest.raises(ConfigurationError, match="temperature is 0, but must be finite and above 0"):
        models.load("gmmformer-v2").Options(temperature=0)
    with pytest.raises(UnknownName, match="did you mean 'triangular'"):
        models.load("amdnet").Options(window="triangle")
