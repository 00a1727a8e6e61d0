"""Kill an extraction again and again, and compare what it ends with to an undisturbed one.

    .venv/bin/python benchmarks/kills.py [--kills 60] [--videos 4000] [--seed 0]

Two workers, SIGKILL to the whole process group at random times; the same command continues each time. Videos are links to a
few short ones, and some are long: their rows are kept while they are under way. A small CLIP with random weights computes
the features. When the input is worked off before the kills are, the store is kept and more videos are linked.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

from prvr.datasets.store import FeatureStore

BIN = Path(sys.executable).parent
DISTINCT, LONG_EVERY = 20, 200


def make_weights(folder: Path) -> Path:
    """A CLIP image tower of random numbers, small enough that a kill hits many videos."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPVisionConfig(**sizes, projection_dim=16, image_size=32, patch_size=16)
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def make_video(path: Path, frames: int, step: int, seed: int) -> Path:
    """Pictures of noise, ``step`` tenths of a second apart."""
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"preset": "ultrafast"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(rng.integers(0, 256, (48, 64, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = number * step, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def link(originals: list[Path], long: list[Path], folder: Path, first: int, count: int) -> None:
    """More names for the same videos."""
    for number in range(first, first + count):
        source = long[number % len(long)] if number % LONG_EVERY == 0 else originals[number % len(originals)]
        os.link(source, folder / f"v{number:06d}.mp4")


def wait_for_progress(run: "subprocess.Popen[bytes]", store: Path, done: int) -> None:
    """Until more than ``done`` videos are committed, or the run has ended."""
    while run.poll() is None and (not store.exists() or len(FeatureStore.open(store)) <= done):
        time.sleep(0.1)


def main() -> None:
    """Sweep, compare, and print what was found; exits with 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--videos", type=int, default=4000, help="at the start")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "made").mkdir()
        (root / "videos").mkdir()
        weights = make_weights(root / "weights")
        originals = [make_video(root / "made" / f"{n}.mp4", 20 + n, 1, n) for n in range(DISTINCT)]
        long = [make_video(root / "made" / f"long{n}.mp4", 12, 1000, n) for n in range(2)]
        link(originals, long, root / "videos", 0, options.videos)
        linked = options.videos
        command = [BIN / "prvr-extract", root / "videos", "--backbone", "clip", "--weights", weights, "--workers", "2"]
        killed = root / "killed"
        store = killed / "clip.video.zarr"
        kills = progress = 0
        done = 0
        while kills < options.kills:
            run = subprocess.Popen([*command, "--out", killed, "-q"], start_new_session=True, stdout=subprocess.DEVNULL)
            # Some kills hit the start; the others come at any time once something is committed.
            late = rng.random() < 0.75
            if late:
                wait_for_progress(run, store, done)
            try:
                run.wait(rng.uniform(0, 4 if late else 12))
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
                kills += 1
                before, done = done, len(FeatureStore.open(store)) if store.exists() else 0
                progress += done > before
                assert done >= before, "something that was committed is gone"
                print(f"kill {kills}: {done} of {linked} committed", flush=True)
            else:
                assert run.returncode == 0, f"the run ended with {run.returncode}"
                link(originals, long, root / "videos", linked, 2000)
                linked += 2000
        started = time.monotonic()
        last = subprocess.run([*command, "--out", killed, "--json"], check=True, capture_output=True, text=True)
        counts = json.loads(last.stdout.splitlines()[-1])["videos"]
        subprocess.run([*command, "--out", root / "calm", "-q"], check=True, stdout=subprocess.DEVNULL)
        one, other = FeatureStore.open(store), FeatureStore.open(root / "calm" / "clip.video.zarr")
        same = set(one.ids) == set(other.ids) and all(
            np.array_equal(one[id_], other[id_]) and np.array_equal(one.times(id_), other.times(id_)) for id_ in one.ids
        )
        doctor = subprocess.run([BIN / "prvr-doctor", store], check=False, capture_output=True, text=True)
        left = sorted(path.name for path in killed.iterdir())
        print(f"{kills} kills, {progress} of them after progress; {linked} videos, last run {counts}")
        print(
            f"features and times equal, bit for bit: {same}; prvr-doctor: exit {doctor.returncode}; beside the store: {left}"
        )
        print(f"{time.monotonic() - started:.0f} s for the last run and the undisturbed one")
        if not same or doctor.returncode or left != ["clip.video.zarr"]:
            print(doctor.stdout)
            sys.exit(1)


if __name__ == "__main__":
    main()
