"""The counts that papers and data sets publish, one TOML file a dataset, and how what is found differs from them.

A file has ``source``; ``[splits.<split>]`` and ``[subsets.<subset>.<split>]`` with ``videos`` and ``queries``;
``[[known]]`` differences: ``split``, ``what``, ``found`` and ``why``; and, for a subset of which everyone must have the same
videos, ``[ids.<subset>]`` with a hash of them by split.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from prvr.manifests import registry
from prvr.manifests.errors import UnknownName

names = partial(registry.data_names, __name__)


@dataclass(frozen=True)
class Known:
    """A count that differs from the published one for a known reason."""

    split: str
    what: str
    found: int
    why: str


@dataclass(frozen=True)
class Published:
    """What is published of a dataset or a subset of it.

    Args:
        source: who says so.
        counts: split name to its ``videos`` and ``queries``, as far as they are published.
        known: differences that are explained.
        ids: split name to the SHA-256 of its video ids, sorted and joined by newlines, where that is known.
    """

    source: str
    counts: Mapping[str, Mapping[str, int]]
    known: tuple[Known, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """One count that is not as published; ``why``: None where nobody knows."""

    split: str
    what: str
    found: int
    published: int
    why: str | None


def load(dataset: str, subset: str = "") -> Published | None:
    """What is published of a dataset; None where nothing is. Raises UnknownName for a subset that is not published."""
    if dataset not in names():
        return None
    values = tomllib.loads(registry.data(__name__, dataset, kind="dataset"))
    parts = {"": values["splits"], **values.get("subsets", {})}
    if subset not in parts:
        raise UnknownName(f"subset of {dataset}", subset, parts.keys() - {""})
    known = tuple(Known(**one) for one in values.get("known", ()))
    return Published(values["source"], parts[subset], known, values.get("ids", {}).get(subset, {}))


def compare(published: Published, counts: Mapping[str, Mapping[str, int]]) -> tuple[Difference, ...]:
    """Where the counts of the splits that were read differ from the published ones."""
    return tuple(
        Difference(split, what, found[what], number, _why(published, split, what, found[what]))
        for split, found in counts.items()
        for what, number in published.counts.get(split, {}).items()
        if found[what] != number
    )


def table(differences: Sequence[Difference]) -> str:
    """A line a difference: what, found, published, why."""
    rows = [("", "found", "published", "why")] + [
        (f"{one.split} {one.what}", f"{one.found:,}", f"{one.published:,}", one.why or "not explained")
        for one in differences
    ]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:{wide[0]}}  {found:>{wide[1]}}  {number:>{wide[2]}}  {why}" for name, found, number, why in rows
    )


def _why(published: Published, split: str, what: str, found: int) -> str | None:
    return next((k.why for k in published.known if (k.split, k.what, k.found) == (split, what, found)), None)
