"""The operator for videos: each is decoded once for all backbones that lack it.

Decoding goes on in threads while the networks compute; batches cross the borders of videos; what is finished is committed
after 32 sources, 20 seconds or 256 MiB, and the rows of what is not are kept aside, so that a kill costs less than 30 seconds
of the networks' work.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from prvr.datasets.ahead import Ahead
from prvr.datasets.device import pick_device
from prvr.datasets.store import Features
from prvr.extract.decode import FrameBatch, decode
from prvr.extract.job import Job, Report
from prvr.extract.loading import make
from prvr.extract.outputs import Commits, Output, open_output
from prvr.extract.pooling import joined, normalised
from prvr.extract.recipes import Channel, Recipe
from prvr.extract.sources import Captions, FrameFolder, Source, Subtitles, VideoSource
from prvr.extract.tower import Tower, Track
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError, DecodeError, PrvrError

AHEAD_BYTES = {"cpu": 96 << 20, "cuda": 1 << 30}
"""Decoded frames that may wait for the networks: enough for all readers of a GPU."""
GPU_BATCH = 8
"""A GPU takes so many times the rows that a CPU does."""
GPU_READERS = 16
"""Most threads that decode for one GPU."""
PATIENCE = 1.0
"""Seconds without a decoded frame after which it is asked whether a commit is due."""


@dataclass
class _Video:
    """A video under way: what it must fill, and its tracks through the towers of each output."""

    source: VideoSource
    fingerprint: str
    tracks: list[tuple[Output[Tower], list[Track]]]
    failed: bool = False

    def each(self) -> Iterator[Track]:
        for _, tracks in self.tracks:
            yield from tracks


@dataclass(frozen=True)
class _Pictures:
    """The next pictures of a video; None when it has ended."""

    video: _Video
    batch: FrameBatch | None


@dataclass(frozen=True)
class _Failed:
    source: VideoSource
    fingerprint: str
    error: Exception
    video: _Video | None


type _Step = Report | _Pictures | _Failed


class VideoExtractor:
    """Features of videos: each is decoded once for all backbones that lack it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = pick_device(job.device)
        self._outputs = [
            open_output(job, plan, tuple(self._tower(*pair) for pair in plan.channels)) for plan in job.plans
        ]
        self._commits = Commits(self._outputs)
        self._under_way: dict[str, _Video] = {}

    def run(self, sources: Iterable[Source]) -> Iterator[Report]:
        """See Extractor."""
        ahead: Ahead[Source, _Step] = Ahead(
            sources, self._steps, threads=self._readers(), limit=AHEAD_BYTES[self.device.type], weight=_weight
        )
        with ahead.running():
            for step in ahead.items(PATIENCE):
                match step:
                    case Report():
                        yield step
                    case _Pictures():
                        yield from self._take(step)
                    case _Failed():
                        yield self._fail(step)
                yield from self._pause()
        for output in self._outputs:
            for tower in output.makers:
                for _ in tower.drain():
                    yield from self._pause()
        self._finish_complete()
        yield from self._commits.commit()

    def _pause(self) -> Iterator[Report]:
        """Between two batches: commit where it is time, and keep what is not finished."""
        self._finish_complete()
        if self._commits.due:
            self._keep_unfinished()
            yield from self._commits.commit()

    def _tower(self, channel: Channel, weights: Weights) -> Tower:
        job = self.job
        several = 1 if self.device.type == "cpu" else GPU_BATCH
        backbone, options = make(job.stream, channel, weights, self.device)
        return Tower(
            channel,
            backbone,
            options=options,
            batch_size=job.batch_size or channel.batch_size * several,
            device=self.device,
            precision=job.precision,
            compiled=job.compiled,
        )

    def _readers(self) -> int:
        if self.job.readers:
            return self.job.readers
        if self.device.type == "cpu" or self.job.decoder == "nvdec":
            return 1
        return min(GPU_READERS, os.cpu_count() or 1)

    def _steps(self, source: Source) -> Iterator[_Step]:
        """In a thread: a source's way up to its decoded pictures."""
        assert not isinstance(source, Captions | Subtitles)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # A thread begins with the first.
        if any(source.id in output.failed for output in self._outputs):
            yield Report(source.id, source.name, "skipped", "failed before")
            return
        fingerprint, video = "", None
        try:
            fingerprint = source.fingerprint()
            lacking = [output for output in self._outputs if output.lacks({source.id: fingerprint})]
            if not lacking:
                yield Report(source.id, source.name, "skipped")
                return
            video = _Video(
                source, fingerprint, [(output, self._begun(output, source, fingerprint)) for output in lacking]
            )
            samplings = [tower.channel.sampling for output in lacking for tower in output.makers]
            rate = source.rate if isinstance(source, FrameFolder) else None
            with source.fetched() as path:
                for batch in decode(path, samplings, decoder=self.job.decoder, rate=rate):
                    yield _Pictures(video, self._pinned(batch))
                    if video.failed:
                        return
            yield _Pictures(video, None)
        except ConfigurationError:
            raise  # Not this video's fault: a decoder that cannot be loaded.
        except (PrvrError, OSError) as error:
            yield _Failed(source, fingerprint, error, video)

    def _begun(self, output: Output[Tower], source: VideoSource, fingerprint: str) -> list[Track]:
        return [
            tower.track(output.partial.read(source.id, fingerprint, number))
            for number, tower in enumerate(output.makers)
        ]

    def _pinned(self, batch: FrameBatch) -> FrameBatch:
        """Pinned memory is copied to a GPU while it computes."""
        if self.device.type == "cuda" and batch.frames.device.type == "cpu":
            return FrameBatch(batch.frames.pin_memory(), batch.rows)
        return batch

    def _take(self, step: _Pictures) -> Iterator[Report]:
        video = step.video
        if video.failed:
            return
        self._under_way[video.source.id] = video
        towers = [tower for output, _ in video.tracks for tower in output.makers]
        try:
            for number, (tower, track) in enumerate(zip(towers, video.each(), strict=True)):
                work = (
                    tower.push(track, step.batch.frames, step.batch.rows[number]) if step.batch else tower.finish(track)
                )
                for _ in work:
                    yield from self._pause()
            if step.batch is None and not all(track.times for track in video.each()):
                raise DecodeError("no frame in it")
        except DecodeError as error:
            yield self._fail(_Failed(video.source, video.fingerprint, error, video))

    def _finish_complete(self) -> None:
        """Hand over the videos whose every row is computed."""
        for video in [video for video in self._under_way.values() if all(track.complete for track in video.each())]:
            del self._under_way[video.source.id]
            for output, tracks in video.tracks:
                rows, times = assembled(output.plan.recipe, tracks)
                output.pending.append(Features(video.source.id, video.fingerprint, rows, times))
            self._commits.add(video.source)

    def _fail(self, step: _Failed) -> Report:
        if step.video is not None:
            step.video.failed = True
            self._under_way.pop(step.source.id, None)
            for track in step.video.each():
                track.abandoned = True
        return self._commits.failed(step.source, step.fingerprint, step.error)

    def _keep_unfinished(self) -> None:
        for video in self._under_way.values():
            for output, tracks in video.tracks:
                for number, track in enumerate(tracks):
                    if len(track.rows) > track.resumed:
                        output.partial.write(video.source.id, video.fingerprint, number, np.stack(track.rows))


def assembled(recipe: Recipe, tracks: list[Track]) -> tuple[np.ndarray, np.ndarray]:
    """The rows [T, E] and times [T] that are stored, of each channel's computed rows."""
    parts = []
    for channel, track in zip(recipe.channels, tracks, strict=True):
        rows, times = track.features()
        if channel.pool:
            rows, times = channel.pool(rows, times, places=len(channel.sampling.keep))
        parts.append((normalised(rows) if recipe.normalise == "l2" else rows, times))
    return joined(parts)


def _weight(step: _Step) -> int:
    return step.batch.frames.nbytes if isinstance(step, _Pictures) and step.batch is not None else 0
