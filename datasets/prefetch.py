"""Batches that are made in a thread while the last ones are used."""

from collections.abc import Iterator

from prvr.datasets.ahead import Ahead
from prvr.datasets.batch import Batch

AHEAD_BYTES = 512 << 20
"""Of batches that lie ready: two, of 128 videos with the features of TVR."""


def prefetched(batches: Iterator[Batch], limit: int) -> Iterator[Batch]:
    """The same batches in their order. An error that making them raises is raised here.

    The thread has ended when this iterator has, also where it is closed or dropped before its end.

    Args:
        limit: bytes of batches that may lie ready, besides the one in the making; 0 makes them without a thread.
    """
    if not limit:
        yield from batches
        return
    work = Ahead([batches], iter, threads=1, limit=limit, weight=lambda batch: batch.nbytes)
    try:
        with work.running():
            for batch in work.items(patience=None):
                if batch is not None:
                    yield batch
    finally:
        work.join()
