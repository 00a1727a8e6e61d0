"""This machine: in this process, or in several that each have the operator and are handed one source at a time."""

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from prvr.extract.job import Job, Report, Source
from prvr.manifests.errors import PrvrError

_AHEAD = 2
"""Sources that a worker holds: the next waits in its pipe while it works."""


def extract(job: Job, sources: Sequence[Source], workers: int) -> Iterator[Report]:
    """Reports as they settle, one for every source.

    Raises:
        PrvrError: a worker died; what it had committed is kept.
    """
    if workers == 1:
        from prvr.extract.run import Extractor

        extractor = Extractor(job)
        for source in sources:
            yield from extractor.feed(source)
        yield from extractor.flush()
    else:
        yield from _pool(job, sources, workers)


def _pool(job: Job, sources: Sequence[Source], workers: int) -> Iterator[Report]:
    # Spawned, not forked: torch and the decoders hold threads and locks that a fork would copy in any state.
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    left = iter(sources)
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=_work, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            processes[ours] = process
            for _ in range(_AHEAD):
                ours.send(next(left, None))
        while processes:
            for pipe in wait(list(processes)):
                assert isinstance(pipe, Connection)
                try:
                    reports = pipe.recv()
                except (EOFError, ConnectionResetError):
                    process = processes.pop(pipe)
                    process.join()
                    if process.exitcode != 0:
                        raise PrvrError(
                            f"a worker died ({_cause(process.exitcode)}); what was committed is kept, the same command continues"
                        ) from None
                    continue
                if isinstance(reports, PrvrError):
                    raise reports
                yield from reports
                try:
                    pipe.send(next(left, None))
                except BrokenPipeError:
                    continue  # The end of the pipe says how it ended.
    finally:
        for process in processes.values():
            process.terminate()
            process.join()


def _work(job: Job, pipe: Connection) -> None:
    from prvr.extract.run import Extractor

    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        extractor = Extractor(job)
        try:
            while (source := pipe.recv()) is not None:
                pipe.send(extractor.feed(source))
        except (EOFError, BrokenPipeError):
            extractor.flush()  # The parent is gone; what is finished is not lost.
            return
        pipe.send(extractor.flush())
    except PrvrError as error:
        pipe.send(error)
        # Leaving with sources unread in the pipe would reset it, and lose the error on its way.
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                pipe.recv()


def _cause(exit_code: int | None) -> str:
    return signal.Signals(-exit_code).name if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
