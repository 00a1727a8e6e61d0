"""What a network computes in: half precision on a GPU where its features agree with those of float32, float32 elsewhere."""

import logging
from typing import Literal

import torch

from prvr.extract.backbones import VideoBackbone

AGREES = 0.999
"""Least cosine between a feature row in half precision and the same in float32."""

_log = logging.getLogger(__name__)
_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_precision(
    name: Literal["auto", "float32", "bfloat16", "float16"] | str,
    backbone: VideoBackbone,
    length: int | None,
    device: torch.device,
) -> torch.dtype:
    """``auto`` is float32 on a CPU, where half precision is slower or absent; on a GPU the first of float16 and bfloat16 that
    agrees, else float32. ``length``: pictures in a window."""
    if name != "auto":
        return _NAMES[name]
    if device.type == "cpu":
        return torch.float32
    for precision in (torch.float16, torch.bfloat16):
        cosine = agreement(backbone, length, device, precision)
        if cosine >= AGREES:
            return precision
        _log.info("%s: cosine %.5f with float32, below %s", precision, cosine, AGREES)
    return torch.float32


def agreement(backbone: VideoBackbone, length: int | None, device: torch.device, precision: torch.dtype) -> float:
    """Least cosine between the rows of a few made-up pictures in ``precision`` and in float32."""
    pictures = backbone.prepare(_pictures(4 * (length or 1)))
    if length:
        pictures = pictures.view(4, length, *pictures.shape[1:])
    exact = backbone(pictures).float()
    with torch.autocast(device.type, precision):
        coarse = backbone(pictures).float()
    return float(torch.nn.functional.cosine_similarity(exact, coarse, dim=-1).min())


def _pictures(count: int) -> torch.Tensor:
    """Smooth structure and noise, [count, 3, 240, 320] uint8, always the same."""
    noise = torch.rand(count, 3, 240, 320, generator=torch.Generator().manual_seed(0))
    down, across = torch.meshgrid(torch.linspace(0, 1, 240), torch.linspace(0, 1, 320), indexing="ij")
    phase = torch.arange(count * 3).view(count, 3, 1, 1)
    smooth = 0.5 + 0.5 * torch.sin(6 * (down + 2 * across) + phase)
    return (255 * (0.8 * smooth + 0.2 * noise)).to(torch.uint8)
