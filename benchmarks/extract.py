"""What extraction costs, side by side in one run: decoders, the networks alone, ours end to end, and a plain loop.

    .venv/bin/python benchmarks/extract.py [--seconds 20] [--backbone resnet] [--repeat 3]

Costs are CPU seconds of one process with one thread a network, per second of video, the best of the repetitions, which are
interleaved. Weights are random: they cost the same. Needs OpenCV (the extra ``test``).
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import av
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from prvr.extract import decoders, recipes
from prvr.extract.decode import decode
from prvr.extract.job import Job, Plan
from prvr.extract.recipes import Channel, Recipe
from prvr.extract.run import extractor
from prvr.extract.sampling import Sampling
from prvr.extract.sources import VideoFile
from prvr.extract.tower import Tower
from prvr.extract.videos import VideoExtractor
from prvr.extract.weights import Weights
from prvr.extract.windows import Window
from prvr.manifests.errors import PrvrError

RANDOM = Weights("random:0", None, 0)
RATE = 25


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds."""

    cpu: float
    wall: float


def measured(*works: Callable[[], object], repeat: int) -> list[Cost]:
    """The least cost of each, in ``repeat`` rounds of all of them."""
    rounds = []
    for _ in range(repeat):
        row = []
        for work in works:
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            row.append(Cost(time.process_time() - cpu, time.perf_counter() - wall))
        rounds.append(row)
    return [Cost(min(c.cpu for c in column), min(c.wall for c in column)) for column in zip(*rounds, strict=True)]


def make_video(path: Path, seconds: int, size: tuple[int, int]) -> Path:
    """Moving structure with some noise, H.264 at 25 frames a second, a keyframe every 10 s."""
    rng = np.random.default_rng(0)
    width, height = size
    down, across = np.mgrid[0:height, 0:width].astype(np.float32)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"crf": "23", "g": "250", "preset": "fast"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(seconds * RATE):
            wave = np.sin(across / 23 + number / 7)[..., None] + np.cos(down / 17 - number / 11)[..., None] * [
                1,
                0.5,
                0.2,
            ]
            picture = 128 + 50 * wave + rng.integers(-6, 7, (height, width, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.clip(0, 255).astype(np.uint8), "rgb24")))
        container.mux(stream.encode())
    return path


def compare_decoders(video: Path, seconds: int, repeat: int) -> None:
    """Source frames per CPU second, for 3 pictures a second and for all."""
    import cv2

    def opencv(every: int) -> None:
        reader = cv2.VideoCapture(str(video))
        number = 0
        while reader.grab():
            if number % every == 0:
                cv2.cvtColor(reader.retrieve()[1], cv2.COLOR_BGR2RGB)
            number += 1

    cv2.setNumThreads(1)
    works: dict[str, list[Callable[[], object]]] = {"opencv": [lambda: opencv(8), lambda: opencv(1)]}
    for name in ("auto", *decoders.names()):
        samplings = [Sampling(3.0), Sampling("native")]
        try:
            list(decode(video, samplings[:1], decoder=name))
        except (PrvrError, ImportError) as error:
            print(f"  {name}: not here ({str(error).splitlines()[0][:80]})")
            continue
        works[name] = [lambda n=name, s=s: sum(len(b.frames) for b in decode(video, [s], decoder=n)) for s in samplings]  # type: ignore[misc]
    costs = measured(*(work for pair in works.values() for work in pair), repeat=repeat)
    first = costs[:2]
    print(f"  {'decoder':12} {'3/s':>10} {'all':>10}   source frames per CPU second (÷ opencv)")
    for number, name in enumerate(works):
        pair = costs[2 * number : 2 * number + 2]
        cells = [f"{seconds * RATE / c.cpu:6.0f} ({o.cpu / c.cpu:.2f})" for c, o in zip(pair, first, strict=True)]
        print(f"  {name:12} {cells[0]:>13} {cells[1]:>13}")


def plain_network(channel: Channel) -> tuple[nn.Module, tuple[int, int]]:
    """The same network as a user would build it, and the size of its pictures."""
    if channel.backbone == "resnet":
        from torchvision.models import resnet152

        network = resnet152(weights=None)
        network.fc = nn.Identity()
        return network.eval(), (224, 224)
    if channel.backbone == "i3d":
        from prvr.extract.backbones import i3d

        network = i3d.InceptionI3d(400).eval()

        class Features(nn.Module):
            def forward(self, windows: Tensor) -> Tensor:
                # As torch computes it by itself: the choice of oneDNN is part of ours.
                with mock.patch.object(i3d, "_prefers_onednn", lambda values: False):
                    return network.extract_features(windows).mean((2, 3, 4))

        return Features(), (224, 224)
    if channel.backbone == "clip":
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        clip = CLIPVisionModelWithProjection(CLIPVisionConfig()).eval()

        class Images(nn.Module):
            def forward(self, pictures: Tensor) -> Tensor:
                rows: Tensor = clip(pixel_values=pictures).image_embeds
                return rows

        return Images(), (224, 224)
    raise SystemExit(f"no plain loop is written for {channel.backbone}")


def plain_loop(video: Path, channel: Channel) -> Callable[[], int]:
    """What a user would run instead: OpenCV, one row at a time, the network as it comes."""
    import cv2

    network, size = plain_network(channel)
    length = channel.window.length if channel.window else 1
    every = RATE / float(channel.sampling.fps)

    def run() -> int:
        reader = cv2.VideoCapture(str(video))
        rows, held, number = [], [], 0
        with torch.inference_mode():
            while True:
                there, picture = reader.read()
                if there:
                    number += 1
                    if int(number / every) == int((number - 1) / every):
                        continue
                    picture = cv2.cvtColor(cv2.resize(picture, size), cv2.COLOR_BGR2RGB)
                    held.append(torch.from_numpy(picture).permute(2, 0, 1).float() / 255 - 0.5)
                elif held:
                    held += held[-1:] * (length - len(held))
                else:
                    break
                if len(held) == length:
                    pictures = torch.stack(held, 1).unsqueeze(0) if channel.window else held[0].unsqueeze(0)
                    rows.append(network(pictures))
                    held = []
        return len(rows)

    return run


def ours(video: Path, chosen: Sequence[Recipe], folder: Path) -> Callable[[], VideoExtractor]:
    """The operator of ``prvr-extract`` on the video, its networks loaded beforehand."""
    numbers = itertools.count()
    where = folder / "+".join(recipe.name for recipe in chosen)
    plans = tuple(Plan(recipe, (RANDOM,) * len(recipe.channels), where / f"{recipe.name}.zarr") for recipe in chosen)
    made = extractor(Job("video", plans, device="cpu"))

    def run() -> VideoExtractor:
        assert isinstance(made, VideoExtractor)
        # Another id each time: what is there is not extracted again.
        reports = list(made.run([VideoFile(f"v{next(numbers)}", video)]))
        assert [report.status for report in reports] == ["extracted"], reports
        return made

    return run


def network_alone(tower: Tower, rows: int) -> Callable[[], None]:
    """So many rows through the network in its batches, from pictures that are prepared."""
    length = tower.channel.window.length if tower.channel.window else None
    pictures = tower._backbone.prepare(
        torch.randint(0, 256, (tower.batch_size * (length or 1), 3, 224, 224), dtype=torch.uint8)
    )
    batch = pictures.view(tower.batch_size, length, *pictures.shape[1:]) if length else pictures

    def run() -> None:
        for _ in range(-(-rows // tower.batch_size)):
            tower._compute(batch)

    return run


def gflops_of(channel: Channel) -> float:
    """Of one row of the plain network (2 for a multiplication with its addition)."""
    network, size = plain_network(channel)
    pictures = torch.rand(1, 3, *([channel.window.length] if channel.window else []), *size)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(pictures)
    return counter.get_total_flops() / 1e9


def sustained() -> float:
    """GFLOP per CPU second of a large matrix product on one thread."""
    one = torch.rand(1536, 1536)
    (cost,) = measured(lambda: one @ one, repeat=5)
    return 2 * 1536**3 / 1e9 / cost.cpu


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20, help="length of the video")
    parser.add_argument("--backbone", action="append", help="resnet, i3d, clip; default all")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds: int = options.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        video = make_video(folder / "video.mp4", seconds, (480, 360))
        print(f"decoders, {seconds} s of 480x360 H.264")
        compare_decoders(video, seconds, options.repeat)
        peak = sustained()
        print(f"\nnetworks: CPU seconds per second of video; this machine sustains {peak:.0f} GFLOP per CPU second")
        head = ("plain loop", "ours", "÷ plain", "network", "decode", "ours ÷ both", "floor", "wall ÷ slower")
        print(f"  {'':8}" + "".join(f"{title:>14}" for title in head))
        chosen = []
        for backbone in options.backbone or ("resnet", "i3d", "clip"):
            over = {"window": {"length": 64, "stride": 64}} if backbone == "i3d" else {}
            recipe = recipes.load(backbone, {backbone: over})
            chosen.append(recipe)
            (channel,) = recipe.channels
            run = ours(video, [recipe], folder)
            (tower,) = run()._outputs[0].makers
            rows = _rows(channel, seconds)
            works = [
                plain_loop(video, channel),
                run,
                network_alone(tower, rows),
                lambda s=channel.sampling: sum(len(b.frames) for b in decode(video, [s])),  # type: ignore[misc]
            ]
            plain, whole, network, decoding = measured(*works, repeat=options.repeat)
            floor = gflops_of(channel) * rows / peak
            cells = [plain.cpu / seconds, whole.cpu / seconds, whole.cpu / plain.cpu, network.cpu / seconds]
            cells += [decoding.cpu / seconds, whole.cpu / (network.cpu + decoding.cpu), floor / seconds]
            cells += [whole.wall / max(network.wall, decoding.wall)]
            print(f"  {backbone:8}" + "".join(f"{cell:14.3f}" for cell in cells), flush=True)
        if len(chosen) > 1:
            pair = chosen[:1] + chosen[-1:]
            both = ours(video, pair, folder)
            towers = [output.makers[0] for output in both()._outputs]
            alone = [network_alone(t, _rows(t.channel, seconds)) for t in towers]
            decoding_ = lambda: sum(len(b.frames) for b in decode(video, [t.channel.sampling for t in towers]))  # noqa: E731
            together, one, other, decoding = measured(both, *alone, decoding_, repeat=options.repeat)
            ratio = together.cpu / (one.cpu + other.cpu + decoding.cpu)
            print(
                f"\n{' and '.join(recipe.name for recipe in pair)} together ÷ (their networks + one decode): {ratio:.3f}"
            )


def _rows(channel: Channel, seconds: int) -> int:
    pictures = int(seconds * float(channel.sampling.fps))
    window: Window | None = channel.window
    return -(-pictures // window.stride) if window else pictures


if __name__ == "__main__":
    main()
