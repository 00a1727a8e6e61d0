"""I3D-R50, SlowFast and X3D: rows are what the classifiers of PyTorchVideo's own networks read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prvr.extract import backbones
from prvr.extract.backbones._pytorchvideo import hub
from prvr.extract.backbones.slowfast import slow
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError

CPU = torch.device("cpu")
CLASSES = 7
SLOW = [0, 4, 8, 13, 17, 22, 26, 31]
BUILDERS = {"i3d-r50": "i3d_r50", "slowfast": "slowfast_r50", "x3d": "x3d_m"}


def loaded(name: str, path: Path) -> Any:
    module = backbones.load(name, "video")
    return module.load_video(Weights("x", path, None), module.VideoOptions(), CPU)


def trained(name: str) -> nn.Module:
    """PyTorchVideo's network with made-up statistics. As it is made, the last normalisation of each block is zero."""
    torch.manual_seed(0)
    network: nn.Module = getattr(hub, BUILDERS[name])(model_num_class=CLASSES).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return network


# The smallest pictures whose last map has 7 × 7 places, and 8 × 8 for X3D.
@pytest.mark.parametrize(("name", "length", "side"), [("i3d-r50", 8, 193), ("slowfast", 32, 193), ("x3d", 16, 225)])
def test_the_classifier_makes_of_a_row_what_the_whole_network_makes_of_the_window(
    name: str, length: int, side: int, tmp_path: Path
) -> None:
    network = trained(name)
    torch.save({"model_state": network.state_dict()}, tmp_path / "trained.pyth")
    windows = torch.randint(0, 256, (1, length, 3, side, side), dtype=torch.uint8)
    row = loaded(name, tmp_path / "trained.pyth")(windows)
    values = ((windows / 255 - 0.45) / 0.225).movedim(2, 1)
    inputs: Tensor | list[Tensor] = [values[:, :, SLOW], values] if name == "slowfast" else values
    head: Any = network.get_submodule("blocks")[-1]  # type: ignore[index]
    # X3D's softmax comes after the projection and before the mean over places.
    head.activation = None
    with torch.inference_mode():
        scores = network(inputs)
        assert scores.shape == (1, CLASSES)
        assert torch.allclose(head.proj(row), scores, atol=1e-5 * float(scores.abs().max()))


def test_slow_pictures_are_spread_from_the_first_to_the_last() -> None:
    numbers = torch.arange(32).view(1, 1, 32, 1, 1)
    assert slow(numbers).flatten().tolist() == SLOW
    assert slow(numbers[:, :, :5]).flatten().tolist() == [0, 4]


@pytest.mark.parametrize("name", BUILDERS)
def test_smaller_windows_than_the_networks_own(name: str) -> None:
    module = backbones.load(name, "video")
    backbone = module.load_video(Weights("random:0", None, 0), module.VideoOptions(), CPU)
    rows = backbone(torch.randint(0, 256, (2, 5, 3, 40, 50), dtype=torch.uint8))
    assert rows.shape == (2, backbone.dim) and torch.isfinite(rows).all()


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_of_another_network(name: str, tmp_path: Path) -> None:
    torch.save({"model_state": {"blocks.0.conv.weight": torch.ones(1)}}, tmp_path / "other.pyth")
    with pytest.raises(ConfigurationError, match=f"not the weights of PyTorchVideo's {BUILDERS[name]}"):
        loaded(name, tmp_path / "other.pyth")
