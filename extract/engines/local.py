"""This machine: in this process, or in several that each have the operator and ask for sources one at a time.

A worker that dies (a decoder that crashes, the system out of memory) costs no more than what it had not committed: its
sources are tried again, each alone in a fresh process, and the one that kills that process too is a failure like another.
"""

import contextlib
import logging
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from prvr.datasets.ledger import Failure, Ledger
from prvr.extract.job import Job, Report
from prvr.extract.sources import Source
from prvr.manifests.errors import PrvrError

_log = logging.getLogger(__name__)


def extract(job: Job, sources: Sequence[Source], workers: int) -> Iterator[Report]:
    """Reports as they settle, one for every source.

    Raises:
        PrvrError: nothing more can be committed, or a worker died before it had taken a source.
    """
    if workers > 1:
        yield from _Pool(job, sources, workers).run()
        return
    from prvr.extract.run import extractor

    yield from extractor(job).run(sources)


@dataclass
class _Worker:
    """A process, where its sources come from, and which of them it has taken and not reported."""

    process: BaseProcess
    supply: deque[Source]
    lone: bool
    taken: list[Source] = field(default_factory=list)

    def next(self) -> Source | None:
        if not self.supply:
            return None
        self.taken.append(self.supply.popleft())
        return self.taken[-1]

    def settle(self, report: Report) -> None:
        settled = next(source for source in self.taken if source.id == report.id)
        self.taken.remove(settled)


class _Pool:
    def __init__(self, job: Job, sources: Sequence[Source], workers: int) -> None:
        self.job = job
        self.left = deque(sources)
        self.suspects: deque[Source] = deque()
        self.most = workers
        self.workers: dict[Connection, _Worker] = {}
        # Spawned, not forked: torch and the decoders hold threads and locks that a fork would copy in any state.
        self.context = multiprocessing.get_context("spawn")

    def run(self) -> Iterator[Report]:
        """All reports; on the way out every worker is stopped."""
        try:
            self._start()
            while self.workers:
                for pipe in wait(list(self.workers)):
                    assert isinstance(pipe, Connection)
                    yield from self._hear(pipe)
                self._start()
        finally:
            for worker in self.workers.values():
                worker.process.terminate()
                worker.process.join()

    def _start(self) -> None:
        """A worker for each suspect, and for the rest as many as there is work for."""
        while len(self.workers) < self.most:
            idle = sum(not worker.taken for worker in self.workers.values())
            if self.suspects:
                supply, lone = deque([self.suspects.popleft()]), True
            elif len(self.left) > idle:
                supply, lone = self.left, False
            else:
                return
            ours, theirs = self.context.Pipe()
            process: BaseProcess = self.context.Process(target=_work, args=(self.job, theirs), daemon=True)
            process.start()
            theirs.close()
            self.workers[ours] = _Worker(process, supply, lone)

    def _hear(self, pipe: Connection) -> Iterator[Report]:
        worker = self.workers[pipe]
        try:
            message = pipe.recv()
        except (EOFError, ConnectionResetError):
            del self.workers[pipe]
            worker.process.join()
            yield from self._ended(worker)
            return
        match message:
            case PrvrError():
                raise message
            case Report():
                worker.settle(message)
                yield message
            case None:
                with contextlib.suppress(BrokenPipeError):  # The end of the pipe says how it ended.
                    pipe.send(worker.next())

    def _ended(self, worker: _Worker) -> Iterator[Report]:
        if worker.process.exitcode == 0 and not worker.taken:
            return
        cause = _cause(worker.process.exitcode)
        if not worker.taken:
            raise PrvrError(f"a worker died before it took a source ({cause}); what was committed is kept")
        if not worker.lone:
            _log.warning("a worker died (%s); what it had not committed is tried again: %d", cause, len(worker.taken))
            self.suspects.extend(worker.taken)
            return
        for source in worker.taken:
            reason = f"the process that worked on it alone died ({cause})"
            for plan in self.job.plans:
                Ledger(plan.store).record(Failure(source.id, source.name, "", reason))
            yield Report(source.id, source.name, "failed", reason)


def _work(job: Job, pipe: Connection) -> None:
    from prvr.extract.run import extractor

    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Sources are asked for in a thread, while reports are sent.
    sending = threading.Lock()

    def send(message: Report | PrvrError | None) -> None:
        # Where the parent is gone, what is finished is still committed.
        with sending, contextlib.suppress(BrokenPipeError):
            pipe.send(message)

    def asked() -> Iterator[Source]:
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                send(None)
                source = pipe.recv()
                if source is None:
                    return
                yield source

    try:
        for report in extractor(job).run(asked()):
            send(report)
    except PrvrError as error:
        send(error)


def _cause(exit_code: int | None) -> str:
    return signal.Signals(-exit_code).name if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
