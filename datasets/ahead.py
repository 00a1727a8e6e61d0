"""Work done ahead in threads, with a bound in bytes: decoding and reading go on while the networks compute."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class Ahead[S, T]:
    """Runs ``produce(source)`` for the sources, in ``threads`` threads, each source in one of them.

    Sources are taken when a thread is free, so that no more are begun than are worked on. What a source produces comes out
    in order; the sources of different threads are interleaved. An error in a thread is raised where the items are read,
    after those that were there before it.

    Args:
        weight: bytes of an item. Threads wait while more than ``limit`` bytes lie unread.
    """

    def __init__(
        self,
        sources: Iterable[S],
        produce: Callable[[S], Iterator[T]],
        *,
        threads: int,
        limit: int,
        weight: Callable[[T], int],
    ) -> None:
        self._sources = iter(sources)
        self._produce = produce
        self._limit = limit
        self._weight = weight
        self._items: deque[T] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._taking = threading.Lock()
        self._running = threads
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    @contextmanager
    def running(self) -> Iterator["Ahead[S, T]"]:
        """Start the threads; when the context ends they stop at their next item."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def join(self) -> None:
        """After the context: wait until the threads have ended, for what they use is theirs until then."""
        for thread in self._threads:
            thread.join()

    def items(self, patience: float | None) -> Iterator[T | None]:
        """Items as they come; None where none has come for ``patience`` seconds (never, if that is None)."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._error or not self._running, timeout=patience)
                if self._error is not None and not self._items:
                    raise self._error
                item = self._items.popleft() if self._items else None
                if item is None and not self._running:
                    return
                if item is not None:
                    self._bytes -= self._weight(item)
                    self._changed.notify_all()
            yield item

    def _work(self) -> None:
        try:
            while not self._closed:
                with self._taking:
                    source = next(self._sources)
                for item in self._produce(source):
                    if not self._put(item):
                        return
        except StopIteration:
            pass
        except BaseException as error:
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _put(self, item: T) -> bool:
        """Wait for room, and hand the item over; False once nobody reads any more."""
        weight = self._weight(item)
        with self._changed:
            # One item that is larger than the limit passes when it is alone.
            self._changed.wait_for(lambda: self._closed or not self._bytes or self._bytes + weight <= self._limit)
            if self._closed:
                return False
            self._items.append(item)
            self._bytes += weight
            self._changed.notify_all()
        return True
