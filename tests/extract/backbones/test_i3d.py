"""Inception-I3D against tensors of the published network, filled by the goldens' recipe; published files load as they are."""

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from prvr.extract.backbones import i3d
from prvr.extract.backbones._network import Network
from prvr.extract.framing import Framing
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError

CPU = torch.device("cpu")
CLOSE = 1e-4
"""Largest error over largest value: it tells apart epsilons, paddings and channel orders, which a cosine does not."""
HASSONY_DIFFERS = 1e-3

type State = dict[str, Tensor]


@pytest.fixture(scope="module")
def goldens(shared: Path) -> Path:
    return shared / "golden" / "extract"


@pytest.fixture(scope="module")
def recipe(goldens: Path) -> Any:
    """The module that fills weights and inputs."""
    spec = importlib.util.spec_from_file_location("golden_recipe", goldens / "recipe.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def state(goldens: Path, recipe: Any) -> State:
    """Weights under the names of piergiaj's file."""
    filled: State = recipe.fill_state_dict(_read(goldens / "i3d_rgb400_state_dict_shapes.json"))
    return filled


@pytest.fixture(scope="module")
def network(state: State) -> i3d.InceptionI3d:
    """The network as published: batch norms on their own."""
    made = i3d.InceptionI3d(400)
    made.load_state_dict(state)
    return made.to(memory_format=torch.channels_last_3d).eval()


@pytest.fixture(scope="module")
def piergiaj(state: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file like piergiaj's: of the days before zip archives, and before batches were counted."""
    path = tmp_path_factory.mktemp("piergiaj") / "rgb_imagenet.pt"
    kept = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    torch.save(kept, path, _use_new_zipfile_serialization=False)
    return path


@pytest.fixture(scope="module")
def hassony(state: State, goldens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file like hassony2's, with the same numbers."""
    path = tmp_path_factory.mktemp("hassony") / "i3d_rgb.pt"
    torch.save({theirs: state[ours] for ours, theirs in _key_map(goldens).items()}, path)
    return path


@pytest.fixture(scope="module")
def small(recipe: Any, goldens: Path) -> tuple[Tensor, Mapping[str, NDArray[np.float32]]]:
    """The smallest golden: its window, and what comes of it."""
    return _golden(recipe, goldens, "f16x112")


def test_names_and_shapes_are_the_published_ones(network: i3d.InceptionI3d, goldens: Path) -> None:
    shapes = {name: list(value.shape) for name, value in network.state_dict().items()}
    assert shapes == _read(goldens / "i3d_rgb400_state_dict_shapes.json")


def test_the_fill_is_the_goldens_own(state: State, goldens: Path) -> None:
    checksums = _read(goldens / "i3d_weight_checksums.json")
    assert checksums.keys() == state.keys()
    for name in list(state)[::7]:
        digest = hashlib.sha256(state[name].numpy().tobytes()).hexdigest()
        assert digest.startswith(checksums[name]["sha256_16"]), name


@pytest.mark.parametrize("case", ["f16x112", "f17x113x141_odd"])
def test_every_endpoint(network: i3d.InceptionI3d, recipe: Any, goldens: Path, case: str) -> None:
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, inputs, output: found.update({name: output})

    hooks = [child.register_forward_hook(keep(name)) for name, child in network.named_children()]
    window, golden = _golden(recipe, goldens, case)
    with torch.inference_mode():
        last = network.extract_map(window)
    for hook in hooks:
        hook.remove()
    statistics = _read(goldens / "i3d_endpoint_stats.json")[case]
    assert found.keys() <= statistics.keys() and len(found) == 16
    for name, values in found.items():
        expected = statistics[name]
        assert list(values.shape) == expected["shape"], name
        # ReLU has been computed in place, and nothing after it changes these.
        measured = torch.stack([values.mean(), values.std(), values.max()])
        assert measured.tolist() == pytest.approx([expected[one] for one in ("mean", "std", "max")], rel=CLOSE), name
    assert _error(last, golden["mixed_5c"]) < CLOSE
    assert _error(last.mean((2, 3, 4)), golden["mixed_5c_mean"]) < CLOSE


@pytest.mark.parametrize("case", ["f23x224_tvr", "f24x224", "f64x224"])
def test_logits_and_both_taps(piergiaj: Path, recipe: Any, goldens: Path, case: str) -> None:
    if not (goldens / f"i3d_{case}.npz").is_file():
        pytest.skip(f"no i3d_{case}.npz among the goldens")
    window, golden = _golden(recipe, goldens, case)
    tapped: Any = _load(piergiaj).network
    folded = tapped.network
    with torch.inference_mode():
        last = folded.extract_map(window)
        folded.extract_map = lambda windows: last  # It takes seconds: once is enough.
        found = {"extract_features": folded.extract_features(window), "logits": folded(window)}
        found |= {"features": found["extract_features"], "feat_avg1024": tapped(window)}
        tapped.tap = "global"
        found["mixed_5c_mean"] = tapped(window)
    compared = [name for name in found if name in golden]
    assert compared
    for name in compared:
        assert _error(found[name], golden[name]) < CLOSE, name


def test_the_naming_decides_the_epsilon(
    piergiaj: Path, hassony: Path, small: tuple[Tensor, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    window, golden = small
    ours = _rows(_load(piergiaj, "global"), window)
    assert _error(ours, golden["mixed_5c_mean"]) < CLOSE
    theirs = _rows(_load(hassony, "global"), window)
    assert HASSONY_DIFFERS < _error(theirs, golden["mixed_5c_mean"]) < 0.02
    monkeypatch.setattr(i3d, "HASSONY_EPSILON", 1e-3)
    assert torch.equal(_rows(_load(hassony, "global"), window), ours)


def test_the_other_naming_follows_from_rules(goldens: Path) -> None:
    key_map = _key_map(goldens)
    assert {name: i3d._in_hassony(name) for name in key_map} == key_map
    assert _read(goldens / "i3d_hassony_state_dict_shapes.json").keys() == set(key_map.values())


def test_a_tensorflow_checkpoint_of_kinetics_600(
    state: State, piergiaj: Path, small: tuple[Tensor, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, NDArray[np.float32]] = {"global_step": np.zeros(1, np.float32)}
    scaled = {name: torch.ones_like(value) if name.endswith("bn.weight") else value for name, value in state.items()}
    scaled["logits.conv3d.weight"] = torch.rand(600, 1024, 1, 1, 1)
    scaled["logits.conv3d.bias"] = torch.rand(600)
    for name, value in scaled.items():
        if (variable := _in_deepmind(name)) is not None:
            array = value.numpy().transpose(2, 3, 4, 1, 0) if value.ndim == 5 else value.numpy()
            array = array.reshape(1, 1, 1, 1, -1) if ".bn." in name else array
            variables |= {variable: array.copy(), f"{variable}/Momentum": array * 0 + 7}
    assert len(variables) == 1 + 2 * (57 * 4 + 2)

    def under(prefix: str) -> Path:
        def read(index: Path, keep: Callable[[str], bool]) -> dict[str, NDArray[np.float32]]:
            return {prefix + name: value.copy() for name, value in variables.items() if keep(prefix + name)}

        monkeypatch.setattr(i3d, "read_checkpoint", read)
        return index

    index, file = tmp_path / "model.ckpt.index", tmp_path / "same.pt"
    index.touch()
    torch.save(scaled, file)
    expected = _rows(_load(file, "global"), small[0])
    for prefix in ("", "RGB/inception_i3d/"):
        assert torch.equal(_rows(_load(under(prefix), "global"), small[0]), expected)
    with pytest.raises(ConfigurationError, match=r"lacks 287 \(Conv3d_1a_7x7/conv_3d/w, "):
        _load(under("Flow/inception_i3d/"))


def test_files_of_another_network_say_which_names_are_wrong(state: State, tmp_path: Path) -> None:
    def refused(changed: State) -> str:
        torch.save(changed, tmp_path / "wrong.pt")
        with pytest.raises(ConfigurationError, match="not the weights of an Inception-I3D") as caught:
            _load(tmp_path / "wrong.pt")
        return str(caught.value)

    message = refused({name: value for name, value in state.items() if not name.startswith("Mixed_4b.b1a.bn")})
    assert (
        "lacks 4 (Mixed_4b.b1a.bn.weight, Mixed_4b.b1a.bn.bias, Mixed_4b.b1a.bn.running_mean, …), has none" in message
    )
    assert "lacks none, has 1 (fc.weight) that it does not know" in refused({**state, "fc.weight": torch.zeros(1)})
    assert "lacks 287 (" in refused({"blocks.0.conv.weight": torch.zeros(1)})
    message = refused({**state, "Conv3d_1a_7x7.conv3d.weight": torch.zeros(64, 2, 7, 7, 7)})
    assert "size mismatch for Conv3d_1a_7x7.conv3d.weight" in message


def test_rows_do_not_depend_on_their_place_or_neighbours() -> None:
    backbone = i3d.load_video(Weights("random:0", None, 0), i3d.VideoOptions(), CPU)
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(0, 256, (4, 9, 3, 50, 70), dtype=torch.uint8, generator=generator)
    rows = backbone(windows)
    assert rows.shape == (4, 1024) and rows.dtype == torch.float32
    assert rows.std() > 0.01, "random weights keep features at an ordinary size"
    assert not torch.allclose(rows[0], rows[1], rtol=1e-2)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(backbone(windows[order]), rows[order])
    others = windows.clone()
    others[1:] = 255 - others[1:]
    assert torch.equal(backbone(others)[0], rows[0])


def test_windows_are_scaled_to_what_the_network_was_trained_on(recipe: Any) -> None:
    backbone = i3d.load_video(Weights("random:0", None, 0), i3d.VideoOptions(), CPU)
    frames = recipe.uint8_clip("i3d", 9, 60, 80).permute(0, 3, 1, 2)
    pictures = replace(i3d.VideoOptions().framing, short_side=48, crop=40)(frames)
    expected = _rows(backbone, pictures.transpose(0, 1)[None] / 127.5 - 1)
    assert _error(backbone(pictures[None]), expected.numpy()) < 1e-5
    assert i3d.VideoOptions().framing == Framing(short_side=256, crop=224)


@pytest.mark.parametrize("frames", [1, 2, 9])
def test_of_a_map_smaller_than_the_window_of_averages_all_is_averaged(frames: int) -> None:
    window = torch.rand(1, 3, frames, 50, 64, generator=torch.Generator().manual_seed(0))
    one, two = (_rows(_load(None, tap), window) for tap in ("windowed", "global"))
    assert one.shape == (1, 1024) and _error(one, two.numpy()) < 1e-6


def test_single_pictures_are_refused_with_advice() -> None:
    with pytest.raises(ConfigurationError, match=r"give its recipe a \[window\]"):
        _load(None)(torch.zeros(2, 3, 224, 224, dtype=torch.uint8))


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (2, 2), (3, 1)])
def test_padding_is_tensorflows_same(size: int, kernel: int, stride: int) -> None:
    """By the definition in tf.nn: ceil(size / stride) outputs, and of what has to be added the lesser half before."""
    values = torch.rand(2, 2, size, 4, 5, generator=torch.Generator().manual_seed(size))
    outputs = -(-size // stride)
    added = max((outputs - 1) * stride + kernel - size, 0)
    padded = functional.pad(values, (0, 0, 0, 0, added // 2, added - added // 2))
    pool = i3d._Pool(2, (kernel, 1, 1), (stride, 1, 1))
    assert torch.equal(pool(values), functional.max_pool3d(padded, pool.kernel, pool.stride))
    convolution = i3d._Convolution(2, 3, (kernel, 1, 1), (stride, 1, 1), bias=False)
    with torch.inference_mode():
        found = convolution(values)
        expected = functional.conv3d(padded, convolution.weight, stride=(stride, 1, 1))
    assert found.shape[2] == outputs and torch.allclose(found, expected, atol=1e-6)


def _load(path: Path | None, tap: str = "windowed") -> Network:
    chosen: Literal["windowed", "global"] = "global" if tap == "global" else "windowed"
    weights = Weights("x", path, 0 if path is None else None)
    return i3d.load_video(weights, i3d.VideoOptions(tap=chosen), CPU)


def _rows(backbone: Network, window: Tensor) -> Tensor:
    """Rows of windows [B, 3, T, h, w] that are normalised already, as the goldens' inputs are."""
    with torch.inference_mode():
        rows: Tensor = backbone.network(window.contiguous(memory_format=torch.channels_last_3d))
    return rows


def _golden(recipe: Any, goldens: Path, case: str) -> tuple[Tensor, dict[str, NDArray[np.float32]]]:
    golden = dict(np.load(goldens / f"i3d_{case}.npz"))
    window: Tensor = recipe.float_clip(case, tuple(golden["input_shape"].tolist()))
    assert hashlib.sha256(window.numpy().tobytes()).hexdigest() == str(golden["input_sha256"])
    return window.contiguous(memory_format=torch.channels_last_3d), golden


def _error(found: Tensor, expected: NDArray[np.float32] | None) -> float:
    assert expected is not None and found.shape == expected.shape
    return float(np.abs(found.numpy() - expected).max() / np.abs(expected).max())


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _key_map(goldens: Path) -> dict[str, str]:
    found: dict[str, str] = _read(goldens / "i3d_key_map_piergiaj_to_hassony.json")
    return found


_BRANCHES = {
    "b0": "Branch_0/Conv3d_0a_1x1",
    "b1a": "Branch_1/Conv3d_0a_1x1",
    "b1b": "Branch_1/Conv3d_0b_3x3",
    "b2a": "Branch_2/Conv3d_0a_1x1",
    "b2b": "Branch_2/Conv3d_0b_3x3",
    "b3b": "Branch_3/Conv3d_0b_1x1",
}


def _in_deepmind(name: str) -> str | None:
    """A name as DeepMind's code makes it; None for what its checkpoints do not have."""
    kinds = {"weight": "w", "bias": "b"}
    norms = {"bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    *unit, layer, value = name.split(".")
    if unit == ["logits"]:
        scope = "Logits/Conv3d_0c_1x1"
    elif unit == ["Mixed_5b", "b2b"]:
        scope = "Mixed_5b/Branch_2/Conv3d_0a_3x3"
    else:
        scope = "/".join([unit[0], *(_BRANCHES[branch] for branch in unit[1:])])
    if layer == "conv3d":
        return f"{scope}/conv_3d/{kinds[value]}"
    return f"{scope}/batch_norm/{norms[value]}" if value in norms else None
