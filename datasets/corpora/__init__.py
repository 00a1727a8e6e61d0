"""Corpora: official annotations in, verified splits out. One file a corpus; the file is its registration.

A corpus module has, on top, its licence and access, and then:

- ``Options``: a frozen dataclass, all with defaults, changed with ``--set <corpus>.<option>=<value>``;
- ``SUBSETS``: published parts of it, name to a line about each;
- ``parse(annotations, options, subset=, splits=) -> Parsed``: reads the official files of these splits, repairs, validates;
- ``prepare(annotations, options) -> None``, where the corpus is made rather than published: makes what is missing;
- ``subtitles(annotations, video_ids)``, where it has some.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from prvr.manifests import registry
from prvr.manifests.split import SPLITS, Video
from prvr.manifests.subtitles import Subtitle


@dataclass(frozen=True)
class Parsed:
    """What a corpus says: its videos by split, the files it read, the repairs by rule."""

    videos: Mapping[str, tuple[Video, ...]]
    sources: tuple[Path, ...]
    repairs: Mapping[str, int] = field(default_factory=dict)


class Corpus(Protocol):
    """The shape of a corpus module."""

    Options: type[Any]
    SUBSETS: Mapping[str, str]

    def parse(self, annotations: Path, options: Any, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed: ...


@runtime_checkable
class Made(Protocol):
    """A corpus that is made rather than published."""

    def prepare(self, annotations: Path, options: Any) -> None: ...


@runtime_checkable
class Subtitled(Protocol):
    """A corpus with subtitles, as far as they are there: those of each video, by its id."""

    def subtitles(self, annotations: Path, video_ids: Collection[str]) -> Mapping[str, tuple[Subtitle, ...]]: ...


names = partial(registry.names, __name__)


def load(name: str) -> Corpus:
    """The corpus module of that name; raises UnknownName."""
    return cast(Corpus, registry.load(__name__, name, kind="dataset"))
