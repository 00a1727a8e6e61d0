"""Progress on stderr: a bar on a terminal, a line every few seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator

_log = logging.getLogger(__name__)
_EVERY = 5.0


def progress[T](items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass ``items`` through and show how many of ``total`` have come. Silent below the level INFO (``-q``)."""
    if not total or not _log.isEnabledFor(logging.INFO):
        yield from items
    elif sys.stderr.isatty():
        yield from _bar(items, what, total)
    else:
        yield from _lines(items, what, total)


def _bar[T](items: Iterable[T], what: str, total: int) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=what, total=total, console=Console(stderr=True))


def _lines[T](items: Iterable[T], what: str, total: int) -> Iterator[T]:
    started = said = time.monotonic()
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - said >= _EVERY:
            said = time.monotonic()
            _log.info("%s: %d of %d, %.0f s", what, done, total, said - started)
    _log.info("%s: %d of %d, %.0f s, done", what, done, total, time.monotonic() - started)
