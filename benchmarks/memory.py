"""Peak memory of an extraction from 1080p files of growing length.

    .venv/bin/python benchmarks/memory.py [--minutes 6 60]

The files repeat the packets of a minute of moving structure, H.264 at 10 frames a second. CLIP B/32 at one picture a second,
random weights, one process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import av
import numpy as np

EXTRACT = Path(sys.executable).parent / "prvr-extract"
RATE, WIDTH, HEIGHT = 10, 1920, 1080


def make_minute(path: Path) -> Path:
    """A minute of 1080p, whose packets can be repeated: it begins with a keyframe and has no pictures out of order."""
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    options = {"crf": "28", "preset": "ultrafast", "bf": "0", "g": "100"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(60 * RATE):
            wave = 128 + 60 * np.sin(across / 97 + number / 9) + 60 * np.cos(down / 61 - number / 13)
            grey = wave.astype(np.uint8)[..., None].repeat(3, axis=2)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


def repeat(minute: Path, target: Path, times: int) -> Path:
    """The same packets again and again, each time a minute later."""
    with av.open(str(target), "w") as output:
        copy = None
        for turn in range(times):
            with av.open(str(minute)) as source:
                stream = source.streams.video[0]
                assert stream.time_base is not None
                copy = copy or output.add_stream_from_template(stream)
                later = int(60 * turn / stream.time_base)
                for packet in source.demux(stream):
                    if packet.dts is not None and packet.pts is not None:
                        packet.pts, packet.dts, packet.stream = packet.pts + later, packet.dts + later, copy
                        output.mux(packet)
    return target


def main() -> None:
    """Print the peak of each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, nargs="+", default=[6, 60])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        minute = make_minute(folder / "minute.mp4")
        for minutes in options.minutes:
            video = repeat(minute, folder / f"{minutes}.mp4", minutes)
            words = ["--backbone", "clip", "--weights", "random:0", "--fps", "1", "--out", folder / "f", "-q"]
            run = subprocess.Popen([EXTRACT, video, *words, "--workers", "1"], stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(run.pid, 0)
            assert status == 0, status
            cpu = used.ru_utime + used.ru_stime
            print(f"{minutes} minutes of 1080p: peak {used.ru_maxrss / 1024:.0f} MiB, {cpu:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
