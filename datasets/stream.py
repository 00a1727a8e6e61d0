"""Reading shards: samples straight from the tars, and batches for training and evaluation."""

from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prvr.datasets.batch import Batch
from prvr.datasets.buffers import Buffers
from prvr.datasets.index import Index, Member, Shard, crc32c
from prvr.datasets.pool import CLIPS
from prvr.datasets.prefetch import AHEAD_BYTES, prefetched
from prvr.datasets.remote import place_of
from prvr.datasets.sample import Array, Sample, decode
from prvr.manifests.errors import CorruptData

_OPEN_FILES = 32


class ShardReader:
    """The samples of one split by position, in shard order; for one thread at a time.

    A sample's bytes are held against the index each time it is read.

    Args:
        folder: of the shards, or its URL, whatever fsspec reads.
        cache: where shards behind a URL are kept; see ``remote``.

    Raises:
        MissingInput, CorruptData, PrvrError: as ``Index.read``.
    """

    def __init__(self, folder: Path | str, split: str, *, cache: Path | None = None) -> None:
        self.folder = folder
        self._place = place_of(folder, cache)
        self.index = Index.read_from(self._place, split)
        self._places = [
            (shard, member, *extent)
            for shard in self.index.shards
            for member, extent in zip(shard.members, shard.extents(), strict=True)
        ]
        self._files: dict[str, BufferedReader] = {}
        self._lent = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, position: int) -> Sample:
        """Read one sample; raises CorruptData where the bytes are not those that were written."""
        _, _, start, end = self._places[position]
        return self._read(position, np.empty(end - start, np.uint8))

    def lent(self, positions: Iterable[int]) -> Iterator[Sample]:
        """Samples that share one memory: each is good until the next is asked for. Raises as ``reader[position]``."""
        for position in positions:
            _, _, start, end = self._places[position]
            if len(self._lent) < end - start:
                self._lent = np.empty(end - start, np.uint8)
            yield self._read(position, self._lent[: end - start])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def shard_sizes(self) -> list[int]:
        """Videos in each shard."""
        return [len(shard.members) for shard in self.index.shards]

    def member(self, position: int) -> Member:
        """What the index says of one sample."""
        return self._places[position][1]

    def _read(self, position: int, memory: NDArray[np.uint8]) -> Sample:
        shard, member, start, _ = self._places[position]
        file = self._file(shard)
        file.seek(start)
        if file.readinto(memory) != len(memory) or crc32c(memory) != member.crc32c:
            raise CorruptData(
                f"{file.name}, {member.video_id!r}: its bytes changed since the index was written; {self._place.remedy}"
            )
        tensors, line = (memory[at - start :][:size] for at, size in (member.tensors, member.line))
        sample = decode(tensors, line)
        if sample.video.video_id != member.video_id:
            raise CorruptData(f"{file.name}: {sample.video.video_id!r} where the index says {member.video_id!r}")
        return sample

    def _file(self, shard: Shard) -> BufferedReader:
        file = self._files.get(shard.name)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._files[shard.name] = self._place.local(shard).open("rb")
        return file


class Collate:
    """Samples to a ``Batch``. Its memory is used again when nobody holds a batch, or a tensor of it, any more.

    Args:
        normalise: rows become x / (||x|| + 1e-5), video after pooling and text before truncation, as MS-SL does.
        max_words: words beyond are left out.
    """

    def __init__(self, *, normalise: bool, max_words: int) -> None:
        self.normalise = normalise
        self.max_words = max_words
        self._frames, self._clips, self._words = Buffers(), Buffers(), Buffers()

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Frames are padded to the longest video, words to the longest query."""
        frame_width = samples[0].frames.shape[1] if samples else 0
        word_width = next((words.shape[1] for sample in samples for words in sample.words), 0)
        return self.fill(samples, [len(sample.frames) for sample in samples], frame_width, word_width)

    def fill(self, samples: Iterable[Sample], lengths: Sequence[int], frame_width: int, word_width: int) -> Batch:
        """The same of samples that come one by one, none of which is kept.

        Args:
            lengths: F of each sample. ``frame_width``, ``word_width``: E and Ew, also of a batch without videos or queries.

        Raises:
            CorruptData: a sample of other shapes.
        """
        frames = self._frames.take(len(lengths), max(lengths, default=0), frame_width)
        clips = self._clips.take(len(lengths), CLIPS, frame_width)
        queries: list[Array] = []
        owner: list[int] = []
        for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
            _same_shape(sample, "frames", sample.frames, (length, frame_width))
            _same_shape(sample, "clips", sample.clips, (CLIPS, frame_width))
            self._put(sample.frames, frames[row, :length])
            frames[row, length:] = 0
            self._put(sample.clips, clips[row])
            for words in sample.words:
                _same_shape(sample, "words", words, (len(words), word_width))
                kept = words[: self.max_words]
                queries.append(self._put(kept, np.empty(kept.shape, np.float32)))
                owner.append(row)
        words = self._words.take(len(queries), max(map(len, queries), default=0), word_width)
        for query, into in zip(queries, words, strict=True):
            into[: len(query)] = query
            into[len(query) :] = 0
        return Batch(
            frames=torch.from_numpy(frames),
            frame_mask=_mask(lengths),
            clips=torch.from_numpy(clips),
            words=torch.from_numpy(words),
            word_mask=_mask([len(query) for query in queries]),
            owner=torch.tensor(owner, dtype=torch.long),
        )

    def _put(self, rows: Array, into: Array) -> Array:
        if self.normalise:
            norms = np.sqrt(np.vecdot(rows, rows)) + np.float32(1e-5)
            # A product costs two thirds of a quotient, and differs in the last bit at most.
            np.multiply(rows, (1 / norms)[:, None], out=into)
        else:
            into[...] = rows
        return into


def stream(
    reader: ShardReader, batches: Sequence[Sequence[int]], collate: Collate, *, ahead: int = AHEAD_BYTES
) -> Iterator[Batch]:
    """The batches of a plan in its order, made in a thread; a rank whose share of a step is empty gets an empty batch.

    The reader is the thread's until this iterator has ended, or is closed or dropped.

    Args:
        batches: positions, of the epoch's steps that are still to come.
        ahead: bytes of batches that may lie ready; 0 makes them when they are asked for.

    Raises:
        CorruptData: bytes that are not those that were written.
    """
    widths = reader.index.frame_width, reader.index.word_width
    made = (
        collate.fill(reader.lent(positions), [reader.member(position).frames for position in positions], *widths)
        for positions in batches
    )
    return prefetched(made, ahead)


def _same_shape(sample: Sample, what: str, rows: Array, shape: tuple[int, int]) -> None:
    if rows.shape != shape:
        raise CorruptData(f"{sample.video.video_id}: {what} {list(rows.shape)}, where {list(shape)} belong")


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths, default=0))[None, :] < torch.tensor(lengths, dtype=torch.long)[:, None]
