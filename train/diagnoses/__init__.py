"""What ``prvr-doctor`` says of one kind of file each. A module has ``KIND``, ``recognise(path) -> bool`` and
``diagnose(path, look) -> Diagnosis``."""

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prvr.manifests.files import alive
from prvr.manifests.split import Split


@dataclass(frozen=True)
class Look:
    """How to look.

    Args:
        against: a split, whose durations give rates and whose ids say what is missing.
        sample: items whose values are looked at, evenly chosen; sizes and hashes are checked for all.
    """

    against: Split | None = None
    sample: int = 200


@dataclass(frozen=True)
class Finding:
    """``wrong``: it is not sound. ``note``: worth knowing."""

    severity: Literal["wrong", "note"]
    text: str


def wrong(texts: Iterable[str]) -> list[Finding]:
    """What makes it unsound."""
    return [Finding("wrong", _printable(text)) for text in texts]


def notes(texts: Iterable[str]) -> list[Finding]:
    """What is worth knowing."""
    return [Finding("note", _printable(text)) for text in texts]


def _printable(text: str) -> str:
    """Names come from files of strangers: no escape sequence of theirs reaches a terminal, and every text can be encoded."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


@dataclass(frozen=True)
class Diagnosis:
    """What something is, and whether it is sound. ``facts``: JSON values by name, in the order to be shown."""

    path: Path
    kind: str
    facts: Mapping[str, Any]
    findings: Sequence[Finding] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.severity == "note" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        findings = [{"severity": finding.severity, "text": finding.text} for finding in self._sorted()]
        return {
            "path": str(self.path),
            "kind": self.kind,
            "sound": self.sound,
            "facts": dict(self.facts),
            "findings": findings,
        }

    def text(self) -> str:
        """The report for a reader."""
        width = max(map(len, self.facts), default=0)
        lines = [f"{self.path}: {self.kind}, {'sound' if self.sound else 'NOT SOUND'}"]
        lines += [f"  {name:<{width}}  {_shown(value)}" for name, value in self.facts.items()]
        lines += [f"{finding.severity}: {finding.text}" for finding in self._sorted()]
        return "\n".join(lines)

    def _sorted(self) -> list[Finding]:
        return sorted(self.findings, key=lambda finding: finding.severity == "note")


def _shown(value: Any) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case Mapping():
            return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
        case list() | tuple():
            return "; ".join(map(_shown, value))
        case _:
            return str(value)


def evenly[T](items: Sequence[T], at_most: int) -> list[T]:
    """At most so many of them, evenly spaced, the first and last among them."""
    if len(items) <= at_most:
        return list(items)
    return [items[int(place)] for place in np.linspace(0, len(items) - 1, at_most)]


def spread(values: Iterable[float]) -> dict[str, float]:
    """Smallest, median and largest."""
    found = np.asarray(list(values))
    whole = found.dtype.kind in "iu"
    ends = found.min(), np.median(found), found.max()
    return dict(
        zip(("min", "median", "max"), (int(v) if whole and v == int(v) else float(v) for v in ends), strict=True)
    )


def left_behind(folder: Path, of: str = "") -> list[Finding]:
    """Unfinished writes in a folder (of one name): of a writer at work, or of one that died."""
    found = []
    for aside in sorted(folder.glob(f".{escape(of) or '*'}.*-*-*.tmp")):
        maker, process, _ = aside.name.rsplit("-", 2)
        if not maker.endswith(f".{socket.gethostname()}") or not process.isdecimal():
            whose = "of a writer on another machine, which may be at work"
        elif alive(int(process)):
            whose = f"of process {process}, which is at work"
        else:
            whose = "left by a writer that died; the next one of this name removes it"
        found.append(f"{aside.name}: {whose}")
    return notes(found)
