"""The index of one split's shards, ``<split>.index.json``, written last: what is in which shard, at which byte.

Each sample's bytes in the tar, with the tar's own headers and padding, have a CRC-32C; together these cover the whole file. So
whoever reads a sample knows at once that it is what was written, in every epoch, for a tenth of what SHA-256 costs. The
SHA-256 of the shard is for a whole that was moved: downloads, and prvr-doctor.
"""

import hashlib
from collections.abc import Buffer, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from prvr.datasets.remote import Folder, Place, place_of
from prvr.datasets.sample import decode
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.files import sha256_of, write_json

FORMAT = "prvr-shards/2"
_TAR_BLOCK = 512


@dataclass(frozen=True)
class Member:
    """One video in a shard: its true id, its number of queries, and ``(offset, length)`` of its two files.

    ``frames``, F, and ``crc32c``, of its bytes in the tar from its first header to the next sample's, are found when the index is
    written, from what then lies on disk.
    """

    video_id: str
    queries: int
    tensors: tuple[int, int]
    line: tuple[int, int]
    frames: int = 0
    crc32c: int = 0


@dataclass(frozen=True)
class Shard:
    """One tar file: its size, hash, and members in order."""

    name: str
    size: int
    sha256: str
    members: tuple[Member, ...]

    def extents(self) -> list[tuple[int, int]]:
        """Of each member the first byte and the one after its last, headers and padding included: together, the whole file."""
        ends = [-(-max(sum(member.tensors), sum(member.line)) // _TAR_BLOCK) * _TAR_BLOCK for member in self.members]
        return list(pairwise([0, *ends[:-1], self.size]))


@dataclass(frozen=True)
class Index:
    """All shards of one split.

    Args:
        dataset, subset, split: what they hold. ``split_digest``: of the split they were made from.
        inputs: digest of all that they were made from; equal inputs need no new shards.
        frame_width, word_width: E and Ew.
        video_features, text_features, subtitle_features: the specs of what was joined, of words and of subtitles; None
            where there are none.
        pooling: of the formulas, ``published`` or ``corrected``.
        joined: how several features were joined.
        missing: ids of videos that the split names and the features lack. ``missing_queries``: how many queries they have.
    """

    dataset: str
    subset: str
    split: str
    split_digest: str
    inputs: str
    frame_width: int
    word_width: int
    video_features: tuple[Mapping[str, Any], ...]
    text_features: Mapping[str, Any] | None
    subtitle_features: Mapping[str, Any] | None
    pooling: str
    joined: Mapping[str, Any]
    missing: tuple[str, ...]
    missing_queries: int
    shards: tuple[Shard, ...]

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Every video, in shard order."""
        return tuple(member.video_id for shard in self.shards for member in shard.members)

    @property
    def queries(self) -> int:
        """How many queries all videos have."""
        return sum(member.queries for shard in self.shards for member in shard.members)

    @staticmethod
    def path(folder: Path, split: str) -> Path:
        """Where the index of a split lies."""
        return folder / _file_name(split)

    @staticmethod
    def exists(folder: Path | str, split: str) -> bool:
        """Whether a split has an index in a folder or behind a URL."""
        return place_of(folder).has(_file_name(split))

    def write(self, folder: Path) -> "Index":
        """Read every shard back, and write the index, whole or not at all; gives it with what was found.

        Raises:
            CorruptData: a shard is not what was written: the disk fails, or another process writes shards of this split.
        """
        checked = replace(self, shards=tuple(_read_back(shard, folder / shard.name) for shard in self.shards))
        write_json(self.path(folder, self.split), {"format": FORMAT, **asdict(checked)})
        return checked

    @classmethod
    def read(cls, folder: Path | str, split: str) -> "Index":
        """Read the index, and hold the shards' sizes (on disk, not behind a URL) and the split's digest against it.

        Raises:
            MissingInput: no such split was sharded.
            CorruptData: not an index, a shard that is absent or of another size, a split that was made anew since.
            PrvrError: what lies behind a URL cannot be reached.
        """
        return cls.read_from(place_of(folder), split)

    @classmethod
    def read_from(cls, place: Place, split: str) -> "Index":
        """As ``read``."""
        name = _file_name(split)
        if not place.has(name):
            raise MissingInput(f"{place}/{name}: no shards of split {split!r} there; make them with prvr-build-split")
        values = place.json(name)
        try:
            if values.pop("format") != FORMAT:
                raise CorruptData(f"{place}/{name}: not of the format {FORMAT}")
            shards = tuple(_shard(shard) for shard in values.pop("shards"))
            values["missing"] = tuple(values["missing"])
            values["video_features"] = tuple(values["video_features"])
            index = cls(**values, shards=shards)
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"{place}/{name}: not an index of the format {FORMAT} ({error!r})") from None
        if place.has("split.json") and place.json("split.json")["digest"] != index.split_digest:
            raise CorruptData(f"{place}/{name}: stale, its split.json was written since; build the shards again")
        for shard in index.shards:
            place.check(shard)
        return index


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli) of bytes."""
    view = np.frombuffer(data, np.uint8)
    # The extension takes only what nobody writes to meanwhile.
    view.flags.writeable = False
    checksum: int = google_crc32c.value(view)
    return checksum


def verify(shard: Shard, folder: Path) -> None:
    """Hash a shard's bytes; raises CorruptData where they are not those that were written."""
    if sha256_of(folder / shard.name) != shard.sha256:
        raise CorruptData(
            f"{folder / shard.name}: its bytes changed since the index was written; build the shards again"
        )


def _read_back(shard: Shard, path: Path) -> Shard:
    digest = hashlib.sha256()
    members = []
    Folder(path.parent).check(shard)
    with path.open("rb") as file:
        for member, (start, end) in zip(shard.members, shard.extents(), strict=True):
            record = file.read(end - start)
            digest.update(record)
            tensors, line = (memoryview(record)[at - start :][:size] for at, size in (member.tensors, member.line))
            members.append(replace(member, frames=len(decode(tensors, line).frames), crc32c=crc32c(record)))
    if digest.hexdigest() != shard.sha256:
        raise CorruptData(f"{path}: not what was just written; does another process write shards of this split?")
    return replace(shard, members=tuple(members))


def _shard(values: Mapping[str, Any]) -> Shard:
    members = tuple(
        Member(
            member["video_id"],
            member["queries"],
            tuple(member["tensors"]),
            tuple(member["line"]),
            member["frames"],
            member["crc32c"],
        )
        for member in values["members"]
    )
    return Shard(values["name"], values["size"], values["sha256"], members)


def _file_name(split: str) -> str:
    return f"{split}.index.json"
