"""Shapes: a corpus that is drawn, not published, so that the whole package can be tried anywhere, from real MP4 files.

Licence and access: ours, as the rest of this package; nothing is downloaded. Why it exists: every published corpus of
this field must be asked for, and takes hours to extract. This one is drawn in half a minute and asks the same question:
which of the untrimmed videos holds, at some moment, what the sentence says?

A video (H.264, 8 to 15 s, small, at one of several frame rates) has 3 to 5 moments with an empty scene between them. In
a moment two shapes appear, cross the picture, bounce off a wall or collide: "a small red striped square bounces off the
left wall while a large green circle appears in the middle". A caption may leave out sizes, textures or one of the
shapes, and is still true of a moment of exactly one video of the corpus. Its parts are not: each moment has a shape
that another video of its split shows too, same size, colour and texture: one recognised shape is not the answer.

On disk: ``<annotations>/videos/<video_id>.mp4``; ``shapes.json``, the options and the digest of the whole; and
``moments.jsonl``, one scene a line, written last. All of it is a pure function of the options.
"""

import json
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path

from prvr.datasets.corpora import Parsed
from prvr.datasets.rendering import (
    COLOURS,
    REACH,
    SHAPES,
    TEXTURES,
    Background,
    Moment,
    Picture,
    Scene,
    Thing,
    render,
    still,
)
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.files import digest_of, read_json, write_json, write_text
from prvr.manifests.progress import progress
from prvr.manifests.split import SPLITS, Query, Video

RATES = {"6": 4, "8": 4, "10": 2, "12": 1, "25/2": 1, "15": 1, "24000/1001": 1}
"""Frames a second, and how often. The average is low: rendering and decoding cost by the frame."""
SUBSETS: Mapping[str, str] = {}
SECONDS = (8.0, 15.0)
MOMENTS = (3, 5)
SECONDS_A_MOMENT = 2.5
"""At least, with the empty scene around it: what a short video has fewer moments for."""
CROSSINGS = (("left", "right"), ("right", "left"), ("top", "bottom"), ("bottom", "top"))
WALLS = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
PLACES = {
    "in the middle": (0.0, 0.0),
    "in the top left corner": (-0.85, -0.85),
    "in the top right corner": (0.85, -0.85),
    "in the bottom left corner": (-0.85, 0.85),
    "in the bottom right corner": (0.85, 0.85),
}
"""Places and walls stand in a room that reaches from -1 to 1 both ways, where a thing's middle can be: at -1 it touches
the wall, however large it is."""
COLLIDES = "collides"
ACTIONS = (
    *(f"appears {place}" for place in PLACES),
    *(f"bounces off the {wall} wall" for wall in WALLS),
    *(f"crosses from {a} to {b}" for a, b in CROSSINGS),
)
COLLISIONS = 0.15
OMITTED = 0.25
"""How often a caption leaves out a size or a texture, and ..."""
ALONE = 0.1
"""... one of the two shapes."""
APART = 0.03
"""Of the picture: between the boxes of two things that do not collide."""
SCENES_A_WORKER = 16
"""Below that, a process takes longer to start than it saves."""

type Look = tuple[str, str, str, str]
"""Size, colour, texture, shape."""
type Claim = tuple[tuple[str, ...], ...]
"""What a caption says: for each thing it names size, colour, texture, shape and action, "" where it says nothing."""


@dataclass(frozen=True)
class Options:
    """How much is drawn: videos of each split, and ``size``, the pictures' width and height in pixels.

    Raises:
        ConfigurationError: a split of one video, which nothing could be confused with; a size that is odd or below 32.
    """

    seed: int = 0
    train: int = 600
    dev: int = 0
    test: int = 150
    size: int = 96

    def __post_init__(self) -> None:
        for name, count in self.videos().items():
            if count < 0 or count == 1:
                raise ConfigurationError(f"shapes.{name}={count}: give 0, or 2 videos and more")
        if not any(self.videos().values()):
            raise ConfigurationError("shapes: no videos; give shapes.train or shapes.test")
        if self.size < 32 or self.size % 2:
            raise ConfigurationError(f"shapes.size={self.size}: give an even number of pixels, 32 or more")

    def videos(self) -> dict[str, int]:
        """Videos of each split."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


def prepare(annotations: Path, options: Options) -> None:
    """Draw what is missing of the corpus; videos that are there are kept.

    Raises:
        ConfigurationError: the folder holds a corpus of other options, or of another version.
    """
    scenes = draw(options)
    lines = "".join(json.dumps(scene.to_json()) + "\n" for scene in scenes)
    head = {"format": "prvr-shapes/1", "options": asdict(options), "digest": digest_of(lines)}
    if not (annotations / "shapes.json").exists():
        write_json(annotations / "shapes.json", head)
    elif (found := read_json(annotations / "shapes.json")) != head:
        raise ConfigurationError(
            f"{annotations}: holds shapes of {found.get('options')}, not of {asdict(options)} as this version draws "
            "them; name another folder with --annotations, or remove this one"
        )
    missing = [scene for scene in scenes if not _file(annotations, scene).exists()]
    for _ in progress(_rendered(missing, annotations, options.size), "rendering shapes", len(missing)):
        pass
    write_text(annotations / "moments.jsonl", lines)


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos and captions of a folder that ``prepare`` has made.

    Raises:
        MissingInput: there is no ``moments.jsonl``.
        CorruptData: it is not one of this format.
    """
    videos: dict[str, list[Video]] = {}
    for scene in scenes_of(annotations):
        if scene.split not in splits:
            continue
        queries = tuple(
            Query(f"{scene.video_id}#enc#{number}", moment.caption, moment.start, moment.end)
            for number, moment in enumerate(scene.moments)
        )
        videos.setdefault(scene.split, []).append(Video(scene.video_id, scene.duration, queries))
    return Parsed({k: tuple(v) for k, v in videos.items()}, (annotations / "moments.jsonl",))


def scenes_of(annotations: Path) -> tuple[Scene, ...]:
    """What ``moments.jsonl`` describes; raises as ``parse`` does."""
    path = annotations / "moments.jsonl"
    if not path.is_file():
        raise MissingInput(f"{path}: no such file; prvr-build-split shapes --annotations {annotations} makes it")
    try:
        return tuple(Scene.from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{path}: not scenes of this format ({error!r}); remove it and prepare again") from None


def stills(annotations: Path, split: str, *, seed: int) -> Iterator[tuple[Picture, str]]:
    """Endless pictures [size, size, 3], each with the caption of the moment that it stands in.

    Drawn from the descriptions, without decoding: each pass takes every moment of the split once, shuffled, at a random
    time at which all its things are there.

    Raises:
        MissingInput: no moments of that split.
    """
    moments = [(scene, moment) for scene in scenes_of(annotations) if scene.split == split for moment in scene.moments]
    if not moments:
        raise MissingInput(f"{annotations}: no moments of split {split!r}")
    pixels = read_json(annotations / "shapes.json")["options"]["size"]
    lots = random.Random(f"stills {seed}")
    while True:
        for scene, moment in lots.sample(moments, len(moments)):
            first = max(thing.path[0][0] for thing in moment.things)
            yield still(scene.background, moment.things, lots.uniform(first, 1.0), pixels), moment.caption


def draw(options: Options) -> tuple[Scene, ...]:
    """All scenes of the corpus, train first: a pure function of the options."""
    lots = random.Random(f"shapes {options.seed}")
    used: set[Claim] = set()
    scenes: list[Scene] = []
    for split, count in options.videos().items():
        empty = [_empty(f"shapes-{split}-{number:04d}", split, lots) for number in range(count)]
        looks = [lots.sample(list(product(REACH, COLOURS, TEXTURES, SHAPES)), len(scene.moments)) for scene in empty]
        for number, scene in enumerate(empty):
            moments = []
            for moment, look in zip(scene.moments, looks[number], strict=True):
                # The second thing is the first of a moment elsewhere: that video distracts from this one.
                elsewhere = lots.choice(looks[:number] + looks[number + 1 :])
                second = lots.choice([other for other in elsewhere if other != look])
                moments.append(replace(moment, things=_acted(look, second, used, lots)))
            scenes.append(replace(scene, moments=tuple(moments)))
    return _captioned(scenes, lots)


def _empty(video_id: str, split: str, lots: random.Random) -> Scene:
    """A video whose moments have times, and nothing in them yet."""
    rate = lots.choices(list(RATES), list(RATES.values()))[0]
    near, far = ((lots.randint(195, 235), lots.randint(195, 235), lots.randint(195, 235)) for _ in range(2))
    scene = Scene(video_id, split, rate, 1, Background(near, far, lots.random() < 0.5, lots.randrange(1 << 32)), ())
    scene = replace(scene, frames=round(lots.uniform(SECONDS[0] + 0.1, SECONDS[1] - 0.1) / scene.duration))
    count = lots.randint(MOMENTS[0], min(MOMENTS[1], int(scene.duration / SECONDS_A_MOMENT)))
    spare = scene.duration - count * SECONDS_A_MOMENT
    cuts = [0.0, *sorted(lots.uniform(0, spare) for _ in range(count - 1)), spare]
    moments = []
    for number, (cut, following) in enumerate(pairwise(cuts)):
        start = cut + number * SECONDS_A_MOMENT + lots.uniform(0.2, 0.4)
        end = following + (number + 1) * SECONDS_A_MOMENT - lots.uniform(0.2, 0.4)
        moments.append(Moment(round(start, 3), round(end, 3), "", ()))
    return replace(scene, moments=tuple(moments))


def _acted(first: Look, second: Look, used: set[Claim], lots: random.Random) -> tuple[Thing, Thing]:
    """Things of these looks that do what none of these looks do elsewhere, and are not in each other's way."""
    while True:
        if lots.random() < COLLISIONS:
            things = _colliding(first, second, lots)
        else:
            one, other = lots.choice(ACTIONS), lots.choice(ACTIONS)
            things = Thing(*first, one, _path(one, first, lots)), Thing(*second, other, _path(other, second, lots))
            if not _apart(*things):
                continue
        if (claim := _claim(things)) not in used:
            used.add(claim)
            return things


def _path(action: str, look: Look, lots: random.Random) -> tuple[tuple[float, float, float], ...]:
    """Where an action takes a thing."""
    verb, *_, last = action.split()
    if verb == "appears":
        x, y = (at + lots.uniform(-0.1, 0.1) for at in PLACES[action.removeprefix("appears ")])
        points = [(lots.uniform(0.1, 0.25), x, y), (1.0, x, y)]
    elif verb == "bounces":
        wall = WALLS[action.split()[3]]
        aside, slope = lots.choice((-1, 1)) * lots.uniform(0.3, 0.6), lots.uniform(-0.25, 0.25)
        points = [(p, *_turned(wall, depth, aside + slope * p)) for p, depth in ((0.0, 0.0), (0.5, 1.0), (1.0, 0.0))]
    else:
        aside, slope = lots.uniform(-0.7, 0.7), lots.uniform(-0.2, 0.2)
        points = [(p, *_turned(WALLS[last], depth, aside + slope * p)) for p, depth in ((0.0, -0.85), (1.0, 0.85))]
    reach = REACH[look[0]]
    return tuple((round(part, 4), _in_picture(x, reach), _in_picture(y, reach)) for part, x, y in points)


def _colliding(first: Look, second: Look, lots: random.Random) -> tuple[Thing, Thing]:
    """Two things that run into each other half-way and go back."""
    line, meeting, sideways = lots.uniform(0.25, 0.75), lots.uniform(0.45, 0.55), lots.random() < 0.5
    if lots.random() < 0.5:
        first, second = second, first
    things = []
    for look, side in ((first, -1), (second, 1)):
        reach = REACH[look[0]]
        # Only the boxes of a triangle and a circle touch at their edge: a little closer looks like a collision.
        touching, outside = meeting + side * 0.85 * reach, _in_picture(side * 0.85, reach)
        path = []
        for part, along in ((0.0, outside), (0.5, round(touching, 4)), (1.0, outside)):
            path.append((part, along, line) if sideways else (part, line, along))
        things.append(Thing(*look, COLLIDES, tuple((part, round(x, 4), round(y, 4)) for part, x, y in path)))
    return things[0], things[1]


def _turned(wall: tuple[int, int], depth: float, aside: float) -> tuple[float, float]:
    """``depth`` towards a wall and ``aside`` along it, as x and y of the room."""
    x, y = wall
    return (x * depth, aside) if x else (aside, y * depth)


def _in_picture(at: float, reach: float) -> float:
    """From the room of a thing to a fraction of the picture."""
    return round(reach + (at + 1) / 2 * (1 - 2 * reach), 4)


def _apart(one: Thing, other: Thing) -> bool:
    """Whether their boxes stay away from each other."""
    clear = REACH[one.size] + REACH[other.size] + APART
    places = ((one.at(step / 24), other.at(step / 24)) for step in range(25))
    return all(a is None or b is None or max(abs(a[0] - b[0]), abs(a[1] - b[1])) >= clear for a, b in places)


def _claim(things: Iterable[Thing]) -> Claim:
    """Everything that can be said of these things."""
    return tuple(sorted((t.size, t.colour, t.texture, t.shape, t.action) for t in things))


def _sayings(full: Claim) -> Iterator[Claim]:
    """Every claim that is true of a moment of which ``full`` is the whole truth."""
    alone = () if full[0][-1] == COLLIDES else tuple((part,) for part in full)
    for parts in (full, *alone):
        shorter = (
            [(said, colour, drawn, shape, action) for said in (size, "") for drawn in (texture, "")]
            for size, colour, texture, shape, action in parts
        )
        yield from (tuple(sorted(claim)) for claim in product(*shorter))


def _captioned(scenes: Sequence[Scene], lots: random.Random) -> tuple[Scene, ...]:
    """The scenes with a caption for each moment, true of a moment of that video and of no other."""
    holders: dict[Claim, set[str]] = {}
    for scene in scenes:
        for moment in scene.moments:
            for claim in _sayings(_claim(moment.things)):
                holders.setdefault(claim, set()).add(scene.video_id)
    captioned = []
    for scene in scenes:
        moments = []
        for moment in scene.moments:
            full = _claim(moment.things)
            wish = _wish(full, lots)
            claim = wish if holders[wish] == {scene.video_id} else full
            moments.append(replace(moment, caption=_sentence(claim, lots)))
        captioned.append(replace(scene, moments=tuple(moments)))
    return tuple(captioned)


def _wish(full: Claim, lots: random.Random) -> Claim:
    """One of the sayings, most of them nearly whole."""
    parts = (lots.choice(full),) if lots.random() < ALONE and full[0][-1] != COLLIDES else full
    said = []
    for size, colour, texture, shape, action in parts:
        keeps_size, keeps_texture = lots.random() >= OMITTED, lots.random() >= OMITTED
        said.append((size if keeps_size else "", colour, texture if keeps_texture else "", shape, action))
    return tuple(sorted(said))


def _sentence(claim: Claim, lots: random.Random) -> str:
    """English for a claim, its things in any order."""
    parts = lots.sample(claim, len(claim))
    names = [_with_article(" ".join(word for word in part[:4] if word)) for part in parts]
    if parts[0][-1] == COLLIDES:
        return f"{names[0]} collides with {names[1]}"
    return " while ".join(f"{name} {part[-1]}" for name, part in zip(names, parts, strict=True))


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _file(annotations: Path, scene: Scene) -> Path:
    return annotations / "videos" / f"{scene.video_id}.mp4"


def _rendered(scenes: Sequence[Scene], annotations: Path, pixels: int) -> Iterator[None]:
    """Render on every core; yields once a file."""
    jobs: Callable[[Scene], None] = partial(_render, annotations, pixels)
    workers = min(os.cpu_count() or 1, len(scenes) // SCENES_A_WORKER)
    if workers < 2:
        yield from map(jobs, scenes)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        yield from pool.map(jobs, scenes, chunksize=4)


def _render(annotations: Path, pixels: int, scene: Scene) -> None:
    render(scene, _file(annotations, scene), pixels)


def _end_with_parent() -> None:
    """A worker leaves Ctrl-C to its parent, and does not outlive it: a killed parent cannot stop its pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
