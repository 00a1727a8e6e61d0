"""Work done ahead: in order, bounded in bytes, and honest about errors."""

import threading
import time
from collections.abc import Iterator

import pytest

from prvr.datasets.ahead import Ahead


def _count(source: int) -> Iterator[tuple[int, int]]:
    yield from ((source, n) for n in range(20))


@pytest.mark.parametrize("threads", [1, 3])
def test_each_source_comes_out_whole_and_in_order(threads: int) -> None:
    ahead = Ahead(range(7), _count, threads=threads, limit=5, weight=lambda item: 1)
    with ahead.running():
        found = [item for item in ahead.items(1.0) if item is not None]
    assert len(found) == 140
    for source in range(7):
        assert [n for which, n in found if which == source] == list(range(20))


def test_no_more_than_the_limit_lies_unread() -> None:
    made = 0

    def produce(source: int) -> Iterator[int]:
        nonlocal made
        for _ in range(50):
            made += 1
            yield 10

    ahead = Ahead([0], produce, threads=1, limit=100, weight=int)
    with ahead.running():
        items = ahead.items(1.0)
        for read in range(1, 20):
            next(items)
            time.sleep(0.005)
            assert made - read <= 11, "ten lie there and one waits"


def test_one_item_above_the_limit_passes_alone() -> None:
    ahead = Ahead([0], lambda source: iter([500, 500]), threads=1, limit=100, weight=int)
    with ahead.running():
        assert [item for item in ahead.items(1.0) if item] == [500, 500]


@pytest.mark.parametrize("where", ["source", "item"])
def test_an_error_comes_out_where_items_are_read(where: str) -> None:
    def sources() -> Iterator[int]:
        yield 1
        if where == "source":
            raise ZeroDivisionError

    def produce(source: int) -> Iterator[int]:
        yield source
        if where == "item":
            raise ZeroDivisionError

    ahead = Ahead(sources(), produce, threads=1, limit=10, weight=int)
    with ahead.running(), pytest.raises(ZeroDivisionError):
        list(ahead.items(1.0))


def test_nothing_for_a_while_is_said() -> None:
    go = threading.Event()

    def produce(source: int) -> Iterator[int]:
        go.wait()
        yield source

    ahead = Ahead([1], produce, threads=1, limit=10, weight=int)
    with ahead.running():
        items = ahead.items(0.01)
        assert next(items) is None
        go.set()
        assert [item for item in items if item is not None] == [1]


def test_threads_stop_when_nobody_reads_any_more() -> None:
    before = threading.active_count()
    ahead = Ahead(iter(int, 1), _count, threads=2, limit=5, weight=lambda item: 1)
    with ahead.running():
        next(ahead.items(1.0))
    ahead.join()
    assert threading.active_count() == before
