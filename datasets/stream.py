"""Reading shards: samples straight from the tars, and batches for training and evaluation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prvr.datasets.batch import Batch
from prvr.datasets.index import Index, Member, Shard, verify
from prvr.datasets.sample import Sample, decode
from prvr.manifests.errors import CorruptData

_OPEN_FILES = 32


class ShardReader:
    """The samples of one split by position, in shard order. A shard's bytes are hashed when it is first read from."""

    def __init__(self, folder: Path, split: str) -> None:
        self.folder = folder
        self.index = Index.read(folder, split)
        self._places = [(shard, member) for shard in self.index.shards for member in shard.members]
        self._files: dict[str, BinaryIO] = {}
        self._verified: set[str] = set()

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, position: int) -> Sample:
        """Read one sample; raises CorruptData where the bytes are not those that were written."""
        shard, member = self._places[position]
        file = self._file(shard)
        sample = decode(_read(file, member.tensors), _read(file, member.line))
        if sample.video.video_id != member.video_id:
            raise CorruptData(
                f"{self.folder / shard.name}: {sample.video.video_id!r} where the index says {member.video_id!r}"
            )
        return sample

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

    def _file(self, shard: Shard) -> BinaryIO:
        if shard.name not in self._verified:
            verify(shard, self.folder)
            self._verified.add(shard.name)
        file = self._files.get(shard.name)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._files[shard.name] = (self.folder / shard.name).open("rb")
        return file


def _read(file: BinaryIO, place: tuple[int, int]) -> bytes:
    offset, length = place
    file.seek(offset)
    return file.read(length)


class Collate:
    """Samples to a ``Batch``.

    Args:
        normalise: rows become x / (||x|| + 1e-5), video after pooling and text before truncation, as MS-SL does.
        max_words: words beyond are left out.
    """

    def __init__(self, *, normalise: bool, max_words: int) -> None:
        self.normalise = normalise
        self.max_words = max_words

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Frames are padded to the longest video, words to the longest query."""
        frames = [self._rows(sample.frames) for sample in samples]
        words = [self._rows(words)[: self.max_words] for sample in samples for words in sample.words]
        owner = [row for row, sample in enumerate(samples) for _ in sample.words]
        return Batch(
            frames=pad_sequence(frames, batch_first=True),
            frame_mask=_mask([len(one) for one in frames]),
            clips=torch.stack([self._rows(sample.clips) for sample in samples]),
            words=pad_sequence(words, batch_first=True) if words else torch.zeros(0, 0, 0),
            word_mask=_mask([len(one) for one in words]),
            owner=torch.tensor(owner, dtype=torch.long),
        )

    def _rows(self, rows: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.asarray(rows, dtype=np.float32))
        return tensor / (tensor.norm(dim=1, keepdim=True) + 1e-5) if self.normalise else tensor


def stream(reader: ShardReader, batches: Sequence[Sequence[int]], collate: Collate) -> Iterator[Batch]:
    """The batches of a plan, in its order."""
    for positions in batches:
        yield collate([reader[position] for position in positions])


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths, default=0))[None, :] < torch.tensor(lengths, dtype=torch.long)[:, None]
