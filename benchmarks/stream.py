"""What reading for training costs, side by side in one run: ``cat``, ours, WebDataset's iterator, HDF5, and BigFile.

    .venv/bin/python benchmarks/stream.py [--gigabytes 2] [--epochs 3] [--folder DIR]

Made features of the shapes of TVR's: 30 to 100 steps of 3072, five captions of 8 to 20 words of 768 a video. All files are in
the page cache, and memory was touched once beforehand, which a virtual machine's host may take seconds for. CPU seconds are of
this process and its children, user and system, a GB of the files that are read. ``ours`` goes to the padded and normalised
batch of 128 videos, and holds every byte against its checksum in every epoch; the first epoch also gets the memory of its
batches from the system, which later ones use again.

The other formats hold the same videos. HDF5: a data set a video and one a caption, read one by one, no more. BigFile: as MS-SL
reads it, to the batch: each frame by an open, a seek and a read into a list, lists to float64 arrays, a mean a bin, words from
HDF5; on the first 128 videos, since its cost grows with their number alone. Written from descriptions of the released code.
"""

import argparse
import array
import itertools
import resource
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import webdataset
from torch.nn.utils.rnn import pad_sequence

from prvr.datasets.plan import batches, epoch_order
from prvr.datasets.shards import write_shards
from prvr.datasets.source import Raw
from prvr.datasets.store import FeatureSpec
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.split import Query, Split, Video

WIDTH, WORD_WIDTH, CAPTIONS, BATCH, MAX_WORDS = 3072, 768, 5, 128, 30
PER_VIDEO = (65 + 32) * WIDTH * 4 + CAPTIONS * 14 * WORD_WIDTH * 4
"""Bytes of a video of average length in a shard."""

WARM = 2 << 30
"""Bytes that are touched before anything is measured: more than the batches that are held at one time."""


@dataclass(frozen=True)
class Cost:
    """Of reading ``videos`` videos from ``size`` bytes: CPU and wall seconds."""

    videos: int
    size: int
    cpu: float
    wall: float

    @property
    def dear(self) -> float:
        """CPU seconds a GB."""
        return self.cpu / self.size * 1e9

    @property
    def fast(self) -> float:
        """Videos a second."""
        return self.videos / self.wall


def measured(work: Callable[[], object], videos: int, size: int) -> Cost:
    """The cost of doing it once."""
    cpu, wall = _cpu(), time.perf_counter()
    work()
    return Cost(videos, size, _cpu() - cpu, time.perf_counter() - wall)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Made:
    """A source of shards: features that are drawn from the video's id."""

    def __init__(self) -> None:
        self.video_features: tuple[FeatureSpec, ...] = (_spec("video", WIDTH),)
        self.text_features: FeatureSpec | None = _spec("text", WORD_WIDTH)
        self.subtitle_features: FeatureSpec | None = None

    def lacking(self, video_id: str) -> tuple[str, ...]:
        """None lacks any."""
        return ()

    def check(self, videos: Sequence[Video]) -> None:
        """All are of this split."""

    def fingerprint(self, video: Video) -> str:
        """The id says it all."""
        return video.video_id

    def raw(self, video: Video) -> Raw:
        """Noise; steps 1.5 seconds apart."""
        rng = np.random.default_rng(zlib.crc32(video.video_id.encode()))
        steps = rng.standard_normal((rng.integers(30, 101), WIDTH), np.float32)
        words = tuple(
            rng.standard_normal((count, WORD_WIDTH), np.float32) for count in rng.integers(8, 21, len(video.queries))
        )
        return Raw(steps, np.arange(len(steps)) * 1.5, words)

    def report(self) -> Mapping[str, Any]:
        """Nothing is joined."""
        return {}


def _spec(kind: str, width: int) -> FeatureSpec:
    return FeatureSpec(
        stream=kind, backbone="made", recipe="made", recipe_digest="0" * 64, weights="random:0", weights_sha256="1" * 64,
        dim=width, dtype="float32", compute_threads=1, versions={},
    )  # fmt: skip


def make(folder: Path, videos: Sequence[Video]) -> None:
    """The same videos as shards, as HDF5, and the first of them as a BigFile."""
    source = Made()
    write_shards(folder, Split("made", "published", {"train": tuple(videos)}), "train", source)
    with (
        h5py.File(folder / "videos.hdf5", "w") as frames,
        h5py.File(folder / "words.hdf5", "w") as words,
        (folder / "feature.bin").open("wb") as big,
    ):
        for number, video in enumerate(videos):
            raw = source.raw(video)
            frames[video.video_id] = raw.steps
            for query, rows in zip(video.queries, raw.words, strict=True):
                words[query.query_id] = rows
            if number < BATCH:
                big.write(raw.steps.tobytes())


def hdf5(folder: Path, videos: Sequence[Video]) -> None:
    """Every video's and every caption's data set."""
    with h5py.File(folder / "videos.hdf5") as frames, h5py.File(folder / "words.hdf5") as words:
        for video in videos:
            frames[video.video_id][...]
            for query in video.queries:
                words[query.query_id][...]


class BigFile:
    """The reading of MS-SL's released code: rows by their numbers, from one file, to a batch."""

    def __init__(self, folder: Path, videos: Sequence[Video]) -> None:
        self.path = folder / "feature.bin"
        self.words = folder / "words.hdf5"
        self.videos = videos
        lengths = [len(Made().raw(video).steps) for video in videos]
        self.rows = list(itertools.starmap(range, itertools.pairwise([0, *itertools.accumulate(lengths)])))

    def batch(self) -> tuple[torch.Tensor, ...]:
        """Frames, clips and words, padded, of all its videos."""
        frames, clips, words = [], [], []
        with h5py.File(self.words) as file:
            for video, rows in zip(self.videos, self.rows, strict=True):
                values = np.array([self._row(row) for row in rows])
                frames.append(torch.from_numpy(_unit(values)).float())
                clips.append(torch.from_numpy(_unit(_clips(values))).float())
                for query in video.queries:
                    words.append(torch.from_numpy(_unit(file[query.query_id][...])[:MAX_WORDS]))
        return pad_sequence(frames, batch_first=True), torch.stack(clips), pad_sequence(words, batch_first=True)

    def _row(self, number: int) -> list[float]:
        values = array.array("f")
        with self.path.open("rb") as file:
            file.seek(number * WIDTH * 4)
            values.fromfile(file, WIDTH)
        return values.tolist()


def _clips(values: np.ndarray) -> np.ndarray:
    tensor = torch.from_numpy(values)
    cuts = np.round(np.arange(33) * np.float32(len(values) / 32)).astype(int).clip(max=len(values) - 1)
    bins = [
        tensor[first:last].mean(dim=0) if first < last else tensor[first] for first, last in itertools.pairwise(cuts)
    ]
    return torch.stack(bins).numpy()


def _unit(rows: np.ndarray) -> np.ndarray:
    norms: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / (norms + 1e-5)


def epochs(folder: Path, count: int) -> Iterator[Callable[[], None]]:
    """Epochs of ours, one after the other, as a training reads them."""
    collate = Collate(normalise=True, max_words=MAX_WORDS)
    with ShardReader(folder, "train") as reader:
        for epoch in range(count):
            plan = batches(epoch_order(reader.shard_sizes(), seed=0, epoch=epoch), BATCH)

            def run(plan: list[list[int]] = plan) -> None:
                for _ in stream(reader, plan, collate):
                    pass

            yield run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.1, help="of shards; twice as much room is needed")
    parser.add_argument(
        "--epochs", type=int, default=4, help="of ours, and repetitions of the others, whose best counts"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the files are made, and removed again; the system's by default"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = int(options.gigabytes * 1e9 / PER_VIDEO)
    videos = [
        Video(f"v{number}", None, tuple(Query(f"v{number}#enc#{row}", "a caption") for row in range(CAPTIONS)))
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        make(folder, videos)
        tars = sorted(map(str, folder.glob("*.tar")))
        size = sum(Path(tar).stat().st_size for tar in tars)
        peer_size = sum((folder / file).stat().st_size for file in ("videos.hdf5", "words.hdf5"))
        big = BigFile(folder, videos[:BATCH])
        big_size = sum(len(rows) for rows in big.rows) * WIDTH * 4
        works: dict[str, tuple[Callable[[], object], int, int]] = {
            "cat": (lambda: subprocess.run(["cat", *tars], stdout=subprocess.DEVNULL, check=True), count, size),
            "WebDataset, iterator alone": (
                lambda: sum(1 for _ in webdataset.WebDataset(tars, shardshuffle=False)), count, size,
            ),
            "HDF5, data sets alone": (lambda: hdf5(folder, videos), count, peer_size),
            "BigFile, to the batch": (big.batch, BATCH, big_size),
        }  # fmt: skip
        np.ones(WARM >> 3)
        for what in ("cat", "HDF5, data sets alone"):
            works[what][0]()
        rounds: dict[str, list[Cost]] = {}
        for epoch, ours in enumerate(epochs(folder, options.epochs)):
            # Interleaved, so that a busy moment of the machine hits all alike.
            rounds.setdefault("ours, first epoch" if not epoch else "ours, later epochs", []).append(
                measured(ours, count, size)
            )
            for what, (work, number, read) in works.items():
                rounds.setdefault(what, []).append(measured(work, number, read))
        costs = {what: min(own, key=lambda cost: cost.cpu) for what, own in rounds.items()}
        cat, big_cost = costs["cat"], costs["BigFile, to the batch"]
        print(f"{count} videos in {size / 1e9:.2f} GB of shards; best of {options.epochs}")
        print(f"  {'':28}{'videos/s':>10}{'÷ BigFile':>11}{'CPU s/GB':>10}{'÷ cat':>8}")
        for what in ("cat", "ours, first epoch", "ours, later epochs", *list(works)[1:]):
            if (cost := costs.get(what)) is not None:
                print(
                    f"  {what:28}{cost.fast:10.0f}{cost.fast / big_cost.fast:11.1f}{cost.dear:10.3f}{cost.dear / cat.dear:8.1f}"
                )


if __name__ == "__main__":
    main()
