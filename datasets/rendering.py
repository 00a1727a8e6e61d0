"""Pictures of shapes: a scene's description in, pixels or an MP4 file out. What the corpus ``shapes`` is drawn with.

Places are fractions of the picture, (0, 0) top left. A thing's ``reach`` is half its width: at x = reach it
touches the left wall. Every shape fills its box, from -1 to 1 both ways.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prvr.manifests.files import written_aside

type Picture = NDArray[np.uint8]
type Plane = NDArray[np.float64]

REACH = {"small": 0.11, "large": 0.19}
COLOURS = {
    "red": (230, 35, 35),
    "green": (30, 175, 60),
    "blue": (45, 85, 245),
    "yellow": (250, 235, 20),
    "purple": (140, 40, 200),
    "cyan": (20, 215, 225),
    "orange": (255, 135, 10),
    "pink": (255, 130, 190),
}
SHAPES: Mapping[str, Callable[[Plane, Plane], NDArray[np.bool_]]] = {
    "circle": lambda x, y: np.hypot(x, y) <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 1,
    "triangle": lambda x, y: abs(x) <= (y + 1) / 2,
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "cross": lambda x, y: np.minimum(abs(x), abs(y)) <= 0.4,
    "star": lambda x, y: _star(x, y),
}
TEXTURES: Mapping[str, Callable[[Plane, Plane], NDArray[np.bool_]]] = {
    "plain": lambda x, y: np.zeros(x.shape, bool),
    "striped": lambda x, y: (y * 2 + 0.25) % 1 < 0.5,
    "dotted": lambda x, y: np.hypot((x * 1.5 + 0.5) % 1 - 0.5, (y * 1.5 + 0.5) % 1 - 0.5) < 0.32,
    "checkered": lambda x, y: (np.floor(x * 2) + np.floor(y * 2)) % 2 == 1,
}
SHADE = 0.25
"""How bright the dark part of a texture is, against its colour."""
FINER = 4
"""Points a pixel and axis that a thing's edge is averaged over."""


@dataclass(frozen=True)
class Thing:
    """A shape and what it does in its moment.

    ``path`` is ``(part of the moment, x, y)``, in order of time: it moves straight from one to the next, and is in the
    picture from the first on.
    """

    size: str
    colour: str
    texture: str
    shape: str
    action: str
    path: tuple[tuple[float, float, float], ...]

    def at(self, part: float) -> tuple[float, float] | None:
        """Where its middle is at that part (0 to 1) of the moment; None before it appears."""
        parts, xs, ys = zip(*self.path, strict=True)
        if part < parts[0]:
            return None
        return float(np.interp(part, parts, xs)), float(np.interp(part, parts, ys))


@dataclass(frozen=True)
class Moment:
    """What is to be seen from ``start`` to ``end`` (seconds), and a sentence that is true of it."""

    start: float
    end: float
    caption: str
    things: tuple[Thing, ...]


@dataclass(frozen=True)
class Background:
    """A slope of pale colour from one side of the picture to the other, with a grain."""

    near: tuple[int, int, int]
    far: tuple[int, int, int]
    upright: bool
    grain: int


@dataclass(frozen=True)
class Scene:
    """A whole video. ``rate`` is frames a second, as a fraction (``"24000/1001"``); nothing is seen between moments."""

    video_id: str
    split: str
    rate: str
    frames: int
    background: Background
    moments: tuple[Moment, ...]

    @property
    def duration(self) -> float:
        """Seconds."""
        return float(self.frames / Fraction(self.rate))

    def to_json(self) -> dict[str, Any]:
        """The line of this video in ``moments.jsonl``."""
        return {"video_id": self.video_id, "split": self.split, "duration": self.duration, **asdict(self)}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Scene":
        """Inverse of ``to_json``; raises KeyError or TypeError on a line of another shape."""
        moments = (
            Moment(**{**moment, "things": tuple(Thing(**{**t, "path": _tuples(t["path"])}) for t in moment["things"])})
            for moment in line["moments"]
        )
        ground = line["background"]
        background = Background(tuple(ground["near"]), tuple(ground["far"]), ground["upright"], ground["grain"])
        return cls(line["video_id"], line["split"], line["rate"], line["frames"], background, tuple(moments))


def still(background: Background, things: Iterable[Thing], part: float, pixels: int) -> Picture:
    """The picture [pixels, pixels, 3] at one part (0 to 1) of a moment with these things."""
    picture = _ground(background, pixels).copy()
    for thing in things:
        place = thing.at(part)
        if place is not None:
            _paste(_sprite(thing.size, thing.colour, thing.texture, thing.shape, pixels), place, picture)
    return picture


def render(scene: Scene, path: Path, pixels: int) -> None:
    """Write the scene as H.264 in MP4, whole or not at all; the same bytes each time.

    Args:
        pixels: width and height, an even number.
    """
    import av  # here, for the commands that only name the corpora

    rate = Fraction(scene.rate)
    with written_aside(path) as aside, av.open(str(aside), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"preset": "veryfast", "crf": "18"})
        stream.width = stream.height = pixels
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1  # one process a core renders; and threads may change the bytes
        for number in range(scene.frames):
            seconds = float(number / rate)
            now = next((moment for moment in scene.moments if moment.start <= seconds < moment.end), None)
            part = (seconds - now.start) / (now.end - now.start) if now else 0.0
            picture = still(scene.background, now.things if now else (), part, pixels)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


@lru_cache(maxsize=1024)
def _sprite(size: str, colour: str, texture: str, shape: str, pixels: int) -> tuple[Plane, Plane]:
    """Colour [n, n, 3] and cover [n, n, 1] (0 to 1) of a thing's box."""
    width = round(2 * REACH[size] * pixels)
    steps = (np.arange(width * FINER) + 0.5) / (width * FINER) * 2 - 1
    x, y = np.meshgrid(steps, steps)
    shade = np.where(TEXTURES[texture](x, y), SHADE, 1.0)
    blocks = (width, FINER, width, FINER)
    cover = SHAPES[shape](x, y).reshape(blocks).mean(axis=(1, 3))
    brightness = shade.reshape(blocks).mean(axis=(1, 3))
    return brightness[..., None] * np.array(COLOURS[colour]), cover[..., None]


def _paste(sprite: tuple[Plane, Plane], place: tuple[float, float], picture: Picture) -> None:
    colour, cover = sprite
    width, room = len(cover), len(picture) - len(cover)
    left, top = (min(max(round(at * len(picture) - width / 2), 0), room) for at in place)
    box = picture[top : top + width, left : left + width]
    box[:] = np.round(box + (colour - box) * cover)


@lru_cache(maxsize=1024)
def _ground(background: Background, pixels: int) -> Picture:
    slope = np.linspace(0, 1, pixels)[:, None, None] * np.ones((1, pixels, 1))
    if not background.upright:
        slope = slope.swapaxes(0, 1)
    grain = np.random.default_rng(background.grain).integers(-6, 7, (pixels, pixels, 1))
    picture = np.array(background.near) * (1 - slope) + np.array(background.far) * slope + grain
    return np.clip(np.round(picture), 0, 255).astype(np.uint8)


def _star(x: Plane, y: Plane) -> NDArray[np.bool_]:
    """Five points, one up: what lies inside at least four of the five lines that the pentagram is drawn with."""
    top, bottom, side = 1.0, np.cos(np.pi / 5), np.sin(2 * np.pi / 5)
    height = (top - bottom) / 2 - y * (top + bottom) / 2  # a star on the unit circle, stretched to fill its box
    angles = np.pi / 2 + 2 * np.pi * np.arange(5) / 5
    lines = np.cos(angles) * (x * side)[..., None] + np.sin(angles) * height[..., None]
    inside: NDArray[np.bool_] = (lines <= np.cos(2 * np.pi / 5)).sum(axis=-1) >= 4
    return inside


def _tuples(path: Iterable[Iterable[float]]) -> tuple[Any, ...]:
    return tuple(tuple(point) for point in path)
