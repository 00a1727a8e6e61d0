"""The ledger of failures beside a feature store: what could not be extracted, and why. Append-only JSONL."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Failure:
    """One source that gave no features. ``fingerprint`` is empty where the source could not even be read."""

    id: str
    source: str
    fingerprint: str
    error: str


class Ledger:
    """Failures by id; the last line of an id counts. An id that the store has is no longer a failure."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name.removesuffix(".zarr") + ".ledger.jsonl")

    def failures(self) -> dict[str, Failure]:
        """Every recorded failure, by id. A last line that a kill cut short is passed over: its work is done again."""
        found: dict[str, Failure] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").split("\n"):
                try:
                    failure = Failure(**json.loads(line))
                except (ValueError, TypeError):
                    continue
                found[failure.id] = failure
        return found

    def record(self, failure: Failure) -> None:
        """Append one failure, flushed to disk. The same failure again adds no line."""
        if self.failures().get(failure.id) == failure:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            # One write of whole lines; the leading line end closes a line that a kill cut short.
            start = b"" if file.tell() == 0 else b"\n"
            file.write(start + json.dumps(asdict(failure), ensure_ascii=False).encode())
            file.flush()
            os.fsync(file.fileno())
