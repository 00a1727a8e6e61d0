"""The index of one split's shards, ``<split>.index.json``, written last: what is in which shard, at which byte."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.files import read_json, sha256_of, write_json

FORMAT = "prvr-shards/1"


@dataclass(frozen=True)
class Member:
    """One video in a shard: its true id, its number of queries, and ``(offset, length)`` of its two files."""

    video_id: str
    queries: int
    tensors: tuple[int, int]
    line: tuple[int, int]


@dataclass(frozen=True)
class Shard:
    """One tar file: its size, hash, and members in order."""

    name: str
    size: int
    sha256: str
    members: tuple[Member, ...]


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
        return folder / f"{split}.index.json"

    def write(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        write_json(self.path(folder, self.split), {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path, split: str) -> "Index":
        """Read the index, and hold the shards' sizes and the split's digest against it.

        Raises:
            MissingInput: no such split was sharded.
            CorruptData: not an index, a shard that is absent or of another size, a split that was made anew since.
        """
        path = cls.path(folder, split)
        if not path.is_file():
            raise MissingInput(f"{path}: no shards of split {split!r} there; make them with prvr-build-split")
        values = read_json(path)
        try:
            if values.pop("format") != FORMAT:
                raise CorruptData(f"{path}: not of the format {FORMAT}")
            shards = tuple(_shard(shard) for shard in values.pop("shards"))
            values["missing"] = tuple(values["missing"])
            values["video_features"] = tuple(values["video_features"])
            index = cls(**values, shards=shards)
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"{path}: not an index of the format {FORMAT} ({error!r})") from None
        index._hold_against(folder)
        return index

    def _hold_against(self, folder: Path) -> None:
        head = folder / "split.json"
        if head.is_file() and read_json(head)["digest"] != self.split_digest:
            raise CorruptData(
                f"{self.path(folder, self.split)}: stale, {head} was written since; build the shards again"
            )
        for shard in self.shards:
            path = folder / shard.name
            if not path.is_file():
                raise CorruptData(f"{path}: named in the index, but absent")
            if path.stat().st_size != shard.size:
                raise CorruptData(f"{path}: {path.stat().st_size} bytes, the index says {shard.size}")


def verify(shard: Shard, folder: Path) -> None:
    """Hash a shard's bytes; raises CorruptData where they are not those that were written."""
    if sha256_of(folder / shard.name) != shard.sha256:
        raise CorruptData(
            f"{folder / shard.name}: its bytes changed since the index was written; build the shards again"
        )


def _shard(values: Mapping[str, Any]) -> Shard:
    members = tuple(
        Member(member["video_id"], member["queries"], tuple(member["tensors"]), tuple(member["line"]))
        for member in values["members"]
    )
    return Shard(values["name"], values["size"], values["sha256"], members)
