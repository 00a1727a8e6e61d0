"""Feature layouts of others. One file a layout; the file is its registration.

A layout module has:

- ``TITLE``: what to call it;
- ``recognise(path) -> bool``: by names and first bytes alone;
- ``read(path)``: a context manager that gives ``Contents``; arrays are read one at a time, when asked for. Raises
  CorruptData where nothing of it can be read. Nothing is ever unpickled or evaluated;
- ``write(path, arrays)``: what ``read`` reads, from pairs of an id and its array [T, E], one at a time. Raises
  ConfigurationError, before anything else is written, where an id cannot be carried;
- ``places(root)``: the features that a collection holds, name to path; ``place(root, feature)`` and ``words(root, feature)``:
  where one kind of features, and the words that go with it, belong in a collection.

A collection is MS-SL's folder of one data set, named after it, with ``FeatureData/<feature>/…`` and ``TextData/…``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from prvr.manifests import registry

type Array = NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """One id's array, not read yet.

    Args:
        id: of a video, or of a caption.
        shape, dtype: as they stand in the file: [T, E], or whatever its maker made of it.
        read: gives the array of that shape; raises CorruptData.
    """

    id: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array]

    @property
    def of_caption(self) -> bool:
        """Whether the id is one of MS-SL's captions, ``<video>#enc#<number>``."""
        return "#enc#" in self.id


@dataclass(frozen=True)
class Contents:
    """What is in a foreign file or folder: ``entries`` in its own order, ``facts`` of this layout alone, what is ``wrong``
    with it, ``notes`` on what is odd, and how many seconds each row stands for, where the layout says it."""

    entries: tuple[Entry, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds_a_row: float | None = None


class Layout(Protocol):
    """The shape of a layout module."""

    TITLE: str

    def recognise(self, path: Path) -> bool: ...
    def read(self, path: Path) -> AbstractContextManager[Contents]: ...
    def write(self, path: Path, arrays: Iterable[tuple[str, Array]]) -> None: ...
    def places(self, root: Path) -> Mapping[str, Path]: ...
    def place(self, root: Path, feature: str) -> Path: ...
    def words(self, root: Path, feature: str) -> Path: ...


names = partial(registry.names, __name__)


def load(name: str) -> Layout:
    """The layout of that name; raises UnknownName."""
    return cast(Layout, registry.load(__name__, name, kind="layout"))


def layout_of(path: Path) -> Layout | None:
    """The layout that a file or folder has, or None."""
    return next((layout for layout in map(load, names()) if layout.recognise(path)), None)


def some(ids: Sequence[str], at_most: int = 3) -> str:
    """The first of them, for a message."""
    more = f" and {len(ids) - at_most:,} more" if len(ids) > at_most else ""
    return ", ".join(ids[:at_most]) + more
