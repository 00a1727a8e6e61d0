"""Splits: which videos exist, what is said of them, and who trains or tests on them.

On disk (DESIGN §4): ``<folder>/<split>.jsonl``, one line a video, and ``<folder>/split.json``, written last.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.files import read_json, write_json, write_text

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Query:
    """One sentence about one video. ``start`` and ``end`` (seconds) are for reports only: training never sees them."""

    query_id: str
    text: str
    start: float | None = None
    end: float | None = None
    type: str | None = None

    def __post_init__(self) -> None:
        if not self.query_id or not self.text:
            raise ConfigurationError(f"query {self.query_id!r} has no {'text' if self.query_id else 'id'}")

    def fingerprint(self) -> str:
        """Changes when the text changes: what word features are kept under."""
        return _sha256(self.text)


@dataclass(frozen=True, slots=True)
class Video:
    """One untrimmed video and its queries. ``duration`` in seconds, None where nobody knows."""

    video_id: str
    duration: float | None
    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        if not self.video_id:
            raise ConfigurationError("a video has no id")

    def to_json(self) -> dict[str, Any]:
        """The split line of this video."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Video":
        """Inverse of ``to_json``; raises KeyError or TypeError on a line of another shape."""
        return cls(line["video_id"], line["duration"], tuple(Query(**query) for query in line["queries"]))


def counts_of(videos: Mapping[str, Sequence[Video]]) -> dict[str, dict[str, int]]:
    """Videos and queries of each split."""
    return {
        name: {"videos": len(own), "queries": sum(len(video.queries) for video in own)} for name, own in videos.items()
    }


@dataclass(frozen=True)
class Split:
    """All videos of a dataset, by split, with where they came from.

    Args:
        dataset: name of the corpus.
        protocol: ``published`` or ``heldout``.
        videos: split name to its videos, in the order of the annotations.
        sources: file name to sha256, for each annotation file read.
        repairs: rule name to how many rows it changed.
        published: split name to the published counts, where there are any.
        missing: ids of videos that the split names and the features lack.
        subset: which part of the dataset it is; empty for the whole.
        left_out: split name to how many ``videos`` and ``queries`` of the dataset the subset lacks, where that was counted.

    Raises:
        ConfigurationError: an unknown split name, an id or query id that occurs twice in a split.
    """

    dataset: str
    protocol: str
    videos: Mapping[str, tuple[Video, ...]]
    sources: Mapping[str, str] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    subset: str = ""
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, videos in self.videos.items():
            if name not in SPLITS:
                raise ConfigurationError(f"split {name!r} is none of {', '.join(SPLITS)}")
            _refuse_twice(f"{self.dataset} {name}: video id", (video.video_id for video in videos))
            _refuse_twice(
                f"{self.dataset} {name}: query id", (query.query_id for video in videos for query in video.queries)
            )

    def counts(self) -> dict[str, dict[str, int]]:
        """Videos and queries of each split."""
        return counts_of(self.videos)

    def overlap(self) -> dict[str, list[str]]:
        """Videos of ``train`` that stand in another split too, by that split: its results would not be honest."""
        trained = {video.video_id for video in self.videos.get("train", ())}
        found = {
            name: [video.video_id for video in videos if video.video_id in trained]
            for name, videos in self.videos.items()
            if name != "train"
        }
        return {name: ids for name, ids in found.items() if ids}

    def digest(self) -> str:
        """SHA-256 of every line of every split."""
        return _combined({name: _sha256(_lines(videos)) for name, videos in self.videos.items()})

    def write(self, folder: Path) -> None:
        """Write the split files, ``split.json`` last; files of splits that it does not have any more are removed."""
        for name, videos in self.videos.items():
            write_text(folder / f"{name}.jsonl", _lines(videos))
        files = {name: _sha256(_lines(videos)) for name, videos in self.videos.items()}
        write_json(
            folder / "split.json",
            {
                "format": "prvr-split/1",
                "dataset": self.dataset,
                "protocol": self.protocol,
                "counts": self.counts(),
                "published": {name: dict(counts) for name, counts in self.published.items()},
                "files": files,
                "sources": dict(self.sources),
                "repairs": dict(self.repairs),
                "missing": list(self.missing),
                "subset": self.subset,
                "left_out": {name: dict(counts) for name, counts in self.left_out.items()},
                "overlap": {name: len(ids) for name, ids in self.overlap().items()},
                "digest": _combined(files),
            },
        )
        for name in SPLITS:
            if name not in self.videos:
                (folder / f"{name}.jsonl").unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> "Split":
        """Read a split folder.

        Raises:
            MissingInput: it holds no ``split.json``.
            CorruptData: a split file is not the one that was written.
        """
        if not (folder / "split.json").is_file():
            raise MissingInput(f"{folder}: no split.json there; make the split with prvr-build-split")
        head = read_json(folder / "split.json")
        videos = {}
        try:
            for name, digest in head["files"].items():
                text = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
                if _sha256(text) != digest:
                    raise CorruptData(f"{folder / name}.jsonl: changed since split.json was written")
                videos[name] = tuple(Video.from_json(json.loads(line)) for line in text.split("\n") if line)
            return cls(
                head["dataset"],
                head["protocol"],
                videos,
                head["sources"],
                head["repairs"],
                head["published"],
                tuple(head["missing"]),
                head.get("subset", ""),
                head.get("left_out", {}),
            )
        except FileNotFoundError as error:
            raise CorruptData(f"{error.filename}: named in split.json, but absent") from None
        except (KeyError, TypeError) as error:
            raise CorruptData(f"{folder}: not a split of this format ({error!r})") from None


def _lines(videos: Iterable[Video]) -> str:
    return "".join(json.dumps(video.to_json(), ensure_ascii=False) + "\n" for video in videos)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _combined(files: Mapping[str, str]) -> str:
    return _sha256("".join(f"{name} {files[name]}\n" for name in sorted(files)))


def _refuse_twice(what: str, ids: Iterable[str]) -> None:
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise ConfigurationError(f"{what} {twice[0]!r} occurs twice (and {len(twice) - 1} more)")
