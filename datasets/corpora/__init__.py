"""Corpora: official annotations in, verified splits out. One file a corpus; the file is its registration.

A corpus module has, on top, its licence and access, and then:

- ``Options``: a frozen dataclass, all with defaults, changed with ``--set <corpus>.<option>=<value>``;
- ``parse(annotations, options) -> Parsed``: reads the official files, repairs, validates;
- ``prepare(annotations, options) -> None``, where the corpus is made rather than published: makes what is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from prvr.manifests import registry
from prvr.manifests.split import Video


@dataclass(frozen=True)
class Parsed:
    """What a corpus says: its videos by split, the files it read, the repairs by rule, the published counts."""

    videos: Mapping[str, tuple[Video, ...]]
    sources: tuple[Path, ...]
    repairs: Mapping[str, int] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Corpus(Protocol):
    """The shape of a corpus module."""

    Options: type[Any]

    def parse(self, annotations: Path, options: Any) -> Parsed: ...


@runtime_checkable
class Made(Protocol):
    """A corpus that is made rather than published."""

    def prepare(self, annotations: Path, options: Any) -> None: ...


names = partial(registry.names, __name__)


def load(name: str) -> Corpus:
    """The corpus module of that name; raises UnknownName."""
    return cast(Corpus, registry.load(__name__, name, kind="dataset"))
