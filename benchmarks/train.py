"""What a training step and an evaluation cost, side by side in one run: what the released code does, done plainly, and ours.

    .venv/bin/python benchmarks/train.py [--models ms-sl gmmformer gmmformer-v2] [--steps 3] [--batch 128] [--no-anomaly]

A made set of 1,500 videos with 30 to 100 steps of 1024, and 3,600 captions of 5 to 25 words of 1024, from which come batches
of 128 videos with all their captions. A step is forward, backward and BertAdam, with dropout; its cost is the median of
several, after one that is not counted. The plain side (``plain/``) and ours are a process each, which take their steps in
turn, so that a busy moment of the machine hits both. CPU seconds are of all threads, user and system. Peak memory is of
training: the process's largest resident set, with what an imported torch takes. An evaluation encodes a gallery of 400
videos, scores 1,100 queries against it and ranks them, as the released code of each model batches it. Reading features is
``stream.py``'s matter and not in it.

Both sides have the same weights, and must agree without dropout: every score of the evaluation to 1e-5, every loss term of
a batch, with the same random negatives, to 1e-5 of its value. Where they do not, the exit code is 1.
"""

import argparse
import importlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain.bert_adam import BertAdam as PlainBertAdam
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from prvr.datasets.batch import Batch
from prvr.datasets.pool import to_clips
from prvr.manifests.settings import build as build_settings
from prvr.train import models, objectives
from prvr.train.evaluate import QUERY_BATCH
from prvr.train.metrics import ranks, recalls
from prvr.train.optim import BertAdam, decay_groups
from prvr.train.step import TrainingStep

MODELS = ("ms-sl", "gmmformer", "gmmformer-v2")
WIDTH = 1024
GALLERY, QUERIES = 400, 1100
FASTER = {"ms-sl": 3.0, "gmmformer": 2.0, "gmmformer-v2": 2.0}
"""Goals: how many times fewer CPU seconds a training step takes,"""
SMALLER, SOONER = 2.0, 5.0
"""how many times less memory, and how many times fewer CPU seconds an evaluation."""
TOLERANCE = 1e-5
LARGE, ROOM = "gmmformer-v2", 17 << 30
"""Plain, at 128 videos a step, this model takes 12.5 GB: with less room than that, it is measured at 64."""


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds."""

    cpu: float
    wall: float


class Made:
    """Videos and captions that are drawn when they are asked for.

    Args:
        videos, captions: how many; every video has one caption at least.
        seed: of all.
    """

    def __init__(self, videos: int, captions: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.seed = seed
        self.steps = rng.integers(30, 101, videos)
        self.captions = 1 + rng.multinomial(captions - videos, np.full(videos, 1 / videos))
        self.order = rng.permutation(videos)

    def batches(self, size: int) -> Iterator[Batch]:
        """All videos, ``size`` at a time, again and again."""
        while True:
            for first in range(0, len(self.order) - size + 1, size):
                yield self.batch(self.order[first : first + size])

    def batch(self, videos: np.ndarray) -> Batch:
        """Of these videos with all their captions, every row of unit length."""
        frames, clips, words = [], [], []
        for video in videos:
            rng = np.random.default_rng((self.seed, int(video)))
            steps = rng.standard_normal((self.steps[video], WIDTH), np.float32)
            frames.append(_unit(steps))
            clips.append(_unit(to_clips(steps, np.arange(len(steps), dtype=np.float64)).values))
            lengths = rng.integers(5, 26, self.captions[video])
            words += [_unit(rng.standard_normal((length, WIDTH), np.float32)) for length in lengths]
        owner = torch.from_numpy(np.repeat(np.arange(len(videos)), self.captions[videos]))
        return Batch(_padded(frames), _mask(frames), torch.stack(clips), _padded(words), _mask(words), owner)


def _unit(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5))


def _padded(sequences: list[Tensor]) -> Tensor:
    return pad_sequence(sequences, batch_first=True)


def _mask(sequences: list[Tensor]) -> Tensor:
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return torch.arange(int(lengths.max())) < lengths[:, None]


class Plain:
    """What the released code does. ``anomaly``: inside detect_anomaly, where that code trains so."""

    def __init__(self, name: str, anomaly: bool) -> None:
        self.module = _plain(name)
        self.net = _weights(name)
        self.anomaly = anomaly and self.module.ANOMALY
        self.optimizer = PlainBertAdam(self.net)

    def step(self, batch: Batch, number: int) -> None:
        """One step of training."""
        self.net.train()
        torch.manual_seed(number)
        with torch.autograd.set_detect_anomaly(self.anomaly):
            loss = sum(self.net.losses(batch, hard=False).values())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def losses(self, batch: Batch) -> dict[str, float]:
        """Of a batch, without dropout."""
        self.net.eval()
        torch.manual_seed(0)
        with torch.no_grad():
            return {name: float(term) for name, term in self.net.losses(batch, hard=False).items()}

    def gallery_batch(self) -> int:
        """Videos that are encoded together."""
        return self.module.GALLERY_BATCH

    @torch.no_grad()
    def evaluate(self, gallery: list[Batch], queries: list[Batch]) -> dict[str, np.ndarray]:
        """Scores by branch, [Q, V]; ranked, too."""
        self.net.eval()
        codes = self.net.joined([self.net.gallery(batch) for batch in gallery])
        found = [self.net.scores(batch.words, batch.word_mask.float(), codes) for batch in queries]
        clip, frame = (torch.cat(branch).numpy() for branch in zip(*found, strict=True))
        fused = 0.7 * clip + 0.3 * frame
        video_ids = [f"v{number}" for number in range(len(clip[0]))]
        query_ids = [f"v{video}#enc#{number}" for number, video in enumerate(torch.cat([b.owner for b in queries]))]
        for scores in (clip, frame, fused) if self.module.RANKED_BRANCHES else (fused,):
            own = [
                [column for column, video in enumerate(video_ids) if query.split("#")[0] == video]
                for query in query_ids
            ]
            found_at = [
                min(int(np.where(order == column)[0][0]) for column in columns) + 1
                for order, columns in zip(map(np.argsort, -scores), own, strict=True)
            ]
            [100 * np.mean(np.array(found_at) <= cut) for cut in (1, 5, 10, 100)]
        return {"clip": clip, "frame": frame, "fused": fused}


class Ours:
    """This package, as ``prvr-train`` and ``prvr-eval`` use it."""

    def __init__(self, name: str, anomaly: bool) -> None:
        module = models.load(name)
        self.model = module.build(module.Options(), frame_width=WIDTH, word_width=WIDTH)
        self.model.load_state_dict(module.from_released(_weights(name).state_dict()))
        parts = {}
        for part, settings in self.model.default_objectives.items():
            objective = objectives.load(part)
            parts[part] = objective.build(build_settings(objective.Options, settings, where=part), self.model)
        self.training = TrainingStep(retriever=self.model, base=self.model, objectives=parts)
        self.optimizer = BertAdam(decay_groups(self.model, 0.01), lr=2.5e-4, total_steps=1000)

    def step(self, batch: Batch, number: int) -> None:
        """One step of training."""
        self.model.train()
        torch.manual_seed(number)
        terms = self.training(batch, 0, torch.Generator().manual_seed(number))
        torch.stack(list(terms.values())).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def losses(self, batch: Batch) -> dict[str, float]:
        """Of a batch, without dropout."""
        self.model.eval()
        with torch.no_grad():
            terms = self.training(batch, 0, torch.Generator().manual_seed(0))
        return {name: float(term) for name, term in terms.items()}

    def gallery_batch(self) -> int:
        """Videos that are encoded together."""
        return self.model.gallery_batch

    @torch.inference_mode()
    def evaluate(self, gallery: list[Batch], queries: list[Batch]) -> dict[str, np.ndarray]:
        """Scores by branch, [Q, V]; ranked, too."""
        self.model.eval()
        texts = [self.model.encode_text(batch.words, batch.word_mask) for batch in queries]
        columns: dict[str, list[Tensor]] = {"clip": [], "frame": [], "fused": []}
        for batch in gallery:
            video = self.model.encode_video(batch.frames, batch.frame_mask, batch.clips)
            scores = [self.model.score(text, video) for text in texts]
            columns["fused"].append(torch.cat([score.fused for score in scores]))
            for branch in ("clip", "frame"):
                columns[branch].append(torch.cat([score.branches[branch] for score in scores]))
        found = {branch: torch.cat(parts, dim=1) for branch, parts in columns.items()}
        recalls(ranks(found["fused"], torch.cat([batch.owner for batch in queries])))
        return {branch: scores.numpy() for branch, scores in found.items()}


def _plain(name: str) -> Any:
    return importlib.import_module(f"plain.{name.replace('-', '_')}")


def _weights(name: str) -> nn.Module:
    """The plain model, initialised as released: both sides begin with it."""
    torch.manual_seed(0)
    net: nn.Module = _plain(name).Net(WIDTH, WIDTH)
    return net


def serve(connection: Connection, side: Callable[[str, bool], Plain | Ours], options: argparse.Namespace) -> None:
    """A process that measures one side, as it is told."""
    base = _peak()
    torch.set_num_threads(options.threads)
    subject = side(options.model, options.anomaly)
    made = Made(options.videos, options.captions, seed=0).batches(options.batch)
    batch = None
    for number in range(options.steps + 1):
        del batch  # before the next one is made
        batch = next(made)
        connection.recv()
        connection.send(measured(lambda batch=batch, number=number: subject.step(batch, number))[0])  # type: ignore[misc]
    connection.send((base, _peak()))
    subject = side(options.model, options.anomaly)  # with the weights that both sides began with
    connection.send(subject.losses(batch))
    gallery, queries = ranked(subject.gallery_batch(), options)
    connection.recv()
    connection.send(measured(lambda: subject.evaluate(gallery, queries)))
    connection.close()


def measured[T](work: Callable[[], T]) -> tuple[Cost, T]:
    """The cost of doing it once, and what comes of it."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall), result


def ranked(size: int, options: argparse.Namespace) -> tuple[list[Batch], list[Batch]]:
    """What is evaluated: a gallery in batches of ``size``, and queries in batches, whose ``owner`` is a row of the gallery."""
    made = Made(options.gallery, options.queries, seed=1)
    whole = made.batch(np.arange(options.gallery))
    nothing = torch.zeros(0, dtype=torch.int64)
    gallery = []
    for rows in torch.split(torch.arange(options.gallery), size):
        mask = whole.frame_mask[rows][:, : int(whole.frame_mask[rows].sum(1).max())]
        frames, clips = whole.frames[rows, : mask.shape[1]], whole.clips[rows]
        gallery.append(Batch(frames, mask, clips, whole.words[:0], whole.word_mask[:0], nothing))
    queries = []
    for rows in torch.split(torch.arange(len(whole.owner)), QUERY_BATCH):
        mask = whole.word_mask[rows][:, : int(whole.word_mask[rows].sum(1).max())]
        words, none = whole.words[rows, : mask.shape[1]], whole.frames[:0]
        queries.append(_Queries(none, whole.frame_mask[:0], whole.clips[:0], words, mask, whole.owner[rows]))
    return gallery, queries


class _Queries(Batch):
    """Queries alone."""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@dataclass(frozen=True)
class Measurement:
    """Of one side: its steps, one evaluation, bytes of memory after the imports and at most, and what it computed."""

    steps: list[Cost]
    evaluation: Cost
    base: int
    peak: int
    losses: Mapping[str, float]
    scores: Mapping[str, np.ndarray]


def compare(options: argparse.Namespace) -> tuple[Measurement, Measurement]:
    """Both sides of a model, in turn."""
    context = get_context("spawn")
    pipes, processes = [], []
    for side in (Plain, Ours):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, side, options), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    steps: list[list[Cost]] = [[], []]
    for _ in range(options.steps + 1):
        for pipe, costs in zip(pipes, steps, strict=True):
            pipe.send("step")
            costs.append(pipe.recv())
    memory = [pipe.recv() for pipe in pipes]
    losses = [pipe.recv() for pipe in pipes]
    evaluations = []
    for pipe in pipes:
        pipe.send("evaluate")
        evaluations.append(pipe.recv())
    for process in processes:
        process.join()
    plain, ours = (
        Measurement(costs[1:], cost, base, peak, terms, scores)
        for costs, (cost, scores), (base, peak), terms in zip(steps, evaluations, memory, losses, strict=True)
    )
    return plain, ours


def difference(plain: Measurement, ours: Measurement) -> tuple[float, float]:
    """The largest of a score, and of a loss term as a part of its value."""
    score = max(float(np.abs(plain.scores[name] - ours.scores[name]).max()) for name in plain.scores)
    if plain.losses.keys() != ours.losses.keys():
        raise SystemExit(f"not the same losses: {sorted(plain.losses)} and {sorted(ours.losses)}")
    return score, max(abs(ours.losses[name] / plain.losses[name] - 1) for name in plain.losses)


def report(options: argparse.Namespace, plain: Measurement, ours: Measurement) -> bool:
    """Print a model's rows; whether both sides agree."""
    both = plain, ours
    cpu, wall = (
        [statistics.median(getattr(cost, kind) for cost in one.steps) for one in both] for kind in ("cpu", "wall")
    )
    queries = options.captions / options.videos * options.batch
    anomaly = _plain(options.model).ANOMALY
    print(f"{options.model}: steps of {options.batch} videos and some {queries:.0f} queries", end="")
    print(f"; plain {'inside' if options.anomaly else 'without'} detect_anomaly, released inside" if anomaly else "")
    rows = [
        ("CPU s a step", *cpu, cpu[0] / cpu[1], FASTER[options.model]),
        ("steps a second", *(1 / seconds for seconds in wall), wall[0] / wall[1], None),
        ("queries a second", *(queries / seconds for seconds in wall), wall[0] / wall[1], None),
        ("peak memory, GB", plain.peak / 1e9, ours.peak / 1e9, plain.peak / ours.peak, SMALLER),
        ("without the imports", *((one.peak - one.base) / 1e9 for one in both), _net(plain) / _net(ours), None),
        ("CPU s an evaluation", plain.evaluation.cpu, ours.evaluation.cpu, plain.evaluation.cpu / ours.evaluation.cpu, SOONER),
    ]  # fmt: skip
    print(f"  {'':22}{'plain':>9}{'ours':>9}{'ratio':>8}{'goal':>7}")
    for name, one, other, ratio, goal in rows:
        wanted = "" if goal is None else f"{goal:7.1f}  {'reached' if ratio >= goal else 'missed'}"
        print(f"  {name:22}{one:9.2f}{other:9.2f}{ratio:8.2f}{wanted}")
    score, loss = difference(plain, ours)
    agree = score <= TOLERANCE and loss <= TOLERANCE
    verdict = "" if agree else ": TOO MUCH"
    print(f"  scores differ by at most {score:.1e}, losses by {loss:.1e} of their value{verdict}\n", flush=True)
    return agree


def _net(measurement: Measurement) -> int:
    return measurement.peak - measurement.base


def _room() -> int:
    """Bytes of memory that are available."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--steps", type=int, default=3, help="that are counted")
    parser.add_argument("--batch", type=int, help="videos a step; 128, and 64 for gmmformer-v2 where memory is short")
    parser.add_argument("--videos", type=int, default=1500)
    parser.add_argument("--captions", type=int, default=3600)
    parser.add_argument("--gallery", type=int, default=GALLERY, help="videos that are evaluated")
    parser.add_argument("--queries", type=int, default=QUERIES, help="that are evaluated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--no-anomaly", dest="anomaly", action="store_false", help="plain MS-SL trains without detect_anomaly"
    )
    options = parser.parse_args()
    wanted = options.batch
    sizes = f"{options.videos} videos, {options.captions} captions, {options.threads} threads"
    print(f"{sizes}; median of {options.steps} steps\n")
    agree = True
    for model in options.models:
        options.model = model
        options.batch = wanted or (64 if options.model == LARGE and _room() < ROOM else 128)
        options.batch = min(options.batch, options.videos)
        agree &= report(options, *compare(options))
    sys.exit(not agree)


if __name__ == "__main__":
    main()
