"""A folder of pictures in place of a video: TVR is published only so, at 3 pictures a second."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from prvr.extract.decoders import Picture
from prvr.extract.sampling import Pick, Sampling, picks
from prvr.extract.sources import FRAME_ENDINGS
from prvr.manifests.errors import DecodeError


def listed(folder: Path) -> list[Path]:
    """The pictures of a folder in order of their names, numbers compared as numbers: ``9.jpg`` comes before ``10.jpg``."""
    found = [
        path for path in folder.iterdir() if path.suffix.lower() in FRAME_ENDINGS and not path.name.startswith(".")
    ]
    return sorted(
        found, key=lambda path: [(int(n), "") if n.isdigit() else (-1, n) for n in re.split(r"(\d+)", path.name)]
    )


def frames(folder: Path, samplings: Sequence[Sampling], rate: float) -> Iterator[Pick[Picture]]:
    """Picture i is on the screen from ``i / rate`` seconds; only the picked ones are opened."""
    times = ((number / rate, 1 / rate, path) for number, path in enumerate(listed(folder)))
    for pick in picks(times, samplings):
        yield Pick(_opened(pick.frame), pick.seconds)


def _opened(path: Path) -> Picture:
    try:
        with Image.open(path) as image:
            picture = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DecodeError(f"{path.name}: {error}") from error
    return torch.from_numpy(picture).permute(2, 0, 1)
