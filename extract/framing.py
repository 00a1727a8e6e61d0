"""Pictures to the size that a network reads: the resizing and cropping of a recipe, as data."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as pictures

from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class Framing:
    """Steps in this order, each left out where it is not set. Every step rounds to uint8, as PIL and OpenCV do.

    Args:
        square: cut to the centre square first (TVR's I3D).
        short_side: resize so that the shorter side has so many pixels, the shape kept.
        at_least: the same, but only where the shorter side is below it.
        size: squash to this height and width.
        crop: cut this square from the centre; a picture that is smaller is refused.
        interpolation, antialias: of the resizing. PIL's is with ``antialias``, OpenCV's without.
    """

    square: bool = False
    short_side: int | None = None
    at_least: int | None = None
    size: tuple[int, int] | None = None
    crop: int | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        set_ = [name for name in ("short_side", "at_least", "size") if getattr(self, name) is not None]
        if len(set_) > 1:
            raise ConfigurationError(f"{set_[0]} and {set_[1]}: pictures are resized once")
        if not set_:
            raise ConfigurationError("say how pictures are resized: short_side, at_least or size")
        if self.size is None and self.crop is None:
            raise ConfigurationError(
                "a crop makes the pictures of all videos equal in size; only with size it is not needed"
            )

    def __call__(self, frames: Tensor) -> Tensor:
        """``frames`` [N, 3, H, W] uint8 to [N, 3, h, w] uint8; h and w do not depend on H and W."""
        if self.square:
            side = min(frames.shape[-2:])
            frames = pictures.center_crop(frames, [side, side])
        target = self._target(*frames.shape[-2:])
        if target != tuple(frames.shape[-2:]):
            mode = InterpolationMode(self.interpolation)
            frames = pictures.resize(frames, list(target), interpolation=mode, antialias=self.antialias)
        return frames if self.crop is None else pictures.center_crop(frames, [self.crop, self.crop])

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if self.size is not None:
            return self.size
        side = self.short_side or max(min(height, width), self.at_least or 0)
        # Rounded down, as torchvision's Resize and PIL's thumbnails do.
        return (side, int(side * width / height)) if height <= width else (int(side * height / width), side)
