"""Feature files of others, whatever their layout."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prvr.datasets.foreign import Contents, Entry, layout_of, some
from prvr.manifests.errors import CorruptData
from prvr.manifests.split import Split
from prvr.train.diagnoses import Diagnosis, Finding, Look, evenly, notes, spread, wrong
from prvr.train.diagnoses._rows import Census

KIND = "features of others"
_TRANSPOSED = (128, 512, 768, 1024, 2048, 2304, 3072, 4096)


def recognise(path: Path) -> bool:
    """Any layout of ``prvr.datasets.foreign``."""
    return layout_of(path) is not None


def diagnose(path: Path, look: Look) -> Diagnosis:
    """Shapes of all arrays, values of an even sample; raises CorruptData where nothing can be read."""
    layout = layout_of(path)
    assert layout is not None, path
    with layout.read(path) as contents:
        usable, findings = _shapes(contents)
        captions = bool(usable) and sum(entry.of_caption for entry in usable) > len(usable) / 2
        facts: dict[str, Any] = {**contents.facts, "captions" if captions else "videos": len(usable)}
        if usable:
            facts |= _described(usable)
            facts |= {} if captions else {"rows a second": _rate(usable, look.against)}
            values, found = _values(usable, look.sample)
            facts |= values
            findings += found
        if look.against:
            findings += _missing(usable, look.against, captions)
    return Diagnosis(path, layout.TITLE, facts, findings)


def _shapes(contents: Contents) -> tuple[list[Entry], list[Finding]]:
    """The entries that are features [T, E] (or one vector a caption), and what is wrong with the others."""
    entries = contents.entries
    findings = wrong(contents.wrong) + notes(contents.notes)
    numbers = [entry for entry in entries if entry.dtype.kind == "f"]
    sized = [entry for entry in numbers if 0 not in entry.shape]
    flat = [entry for entry in sized if len(entry.shape) < 2 and not entry.of_caption]
    deep = [entry for entry in sized if len(entry.shape) > 2]
    usable = [entry for entry in sized if len(entry.shape) == 2 or (len(entry.shape) == 1 and entry.of_caption)]
    for what, found in (
        ("have no values", [entry for entry in numbers if 0 in entry.shape]),
        ("have one axis, where rows and width [T, E] belong", flat),
        ("have more than two axes, where rows and width [T, E] belong", deep),
        ("are not floating-point numbers", [entry for entry in entries if entry.dtype.kind not in "fiu"]),
    ):
        if found:
            examples = some([f"{entry.id} {list(entry.shape)}" for entry in found])
            findings += wrong([f"{len(found):,} arrays {what}: {examples}"])
    integers = [entry.id for entry in entries if entry.dtype.kind in "iu"]
    findings += notes([f"{len(integers):,} arrays are integers, so left out: {some(integers)}"] if integers else [])
    twice = [id_ for id_, count in Counter(entry.id for entry in usable).items() if count > 1]
    findings += wrong([f"{len(twice):,} ids stand in it more than once: {some(twice)}"] if twice else [])
    findings += wrong([] if usable or contents.wrong or findings else ["nothing is in it"])
    if any(entry.dtype.itemsize > 4 for entry in usable):
        findings += notes(["float64: twice the bytes, and no more is known by them"])
    return usable, findings + _widths(usable)


def _widths(usable: Sequence[Entry]) -> list[Finding]:
    widths = Counter(entry.shape[-1] for entry in usable)
    heights = {entry.shape[0] for entry in usable if len(entry.shape) == 2}
    if (
        len(heights) == 1
        and heights != {1}
        and (len(widths) > 1 or (heights <= set(_TRANSPOSED) and not set(widths) & set(_TRANSPOSED)))
    ):
        (height,) = heights
        text = [f"perhaps transposed: [{height}, …], where rows and width [T, {height}] belong"]
        return wrong(text) if len(widths) > 1 else notes(text)
    if len(widths) > 1:
        usual = widths.most_common(1)[0][0]
        others = [f"{entry.id} {list(entry.shape)}" for entry in usable if entry.shape[-1] != usual]
        return wrong([f"{len(others):,} arrays are not {usual:,} wide, as most are: {some(others)}"])
    return []


def _described(usable: Sequence[Entry]) -> dict[str, Any]:
    lengths = [_rows(entry) for entry in usable]
    widths = Counter(entry.shape[-1] for entry in usable)
    dtypes = sorted({str(entry.dtype) for entry in usable})
    return {
        "rows": {"all": sum(lengths), **spread(lengths)},
        "width": next(iter(widths))
        if len(widths) == 1
        else [f"{width:,} ({n:,})" for width, n in widths.most_common(5)],
        "dtype": dtypes[0] if len(dtypes) == 1 else dtypes,
    }


def _rate(usable: Sequence[Entry], split: Split | None) -> Any:
    videos = {video.video_id: video.duration for found in (split.videos.values() if split else ()) for video in found}
    rates = [_rows(entry) / duration for entry in usable if (duration := videos.get(entry.id))]
    return spread(rates) if rates else "unknown: this layout has no times; --against a split with durations tells"


def _values(usable: Sequence[Entry], at_most: int) -> tuple[dict[str, Any], list[Finding]]:
    """Statistics of a sample, of the commonest width."""
    width = Counter(entry.shape[-1] for entry in usable).most_common(1)[0][0]
    fitting = [entry for entry in usable if entry.shape[-1] == width]
    sample, census, unreadable = evenly(fitting, at_most), Census(), []
    for entry in sample:
        try:
            census.add(entry.id, np.atleast_2d(entry.read()))
        except CorruptData as error:
            unreadable.append(str(error))
    facts: dict[str, Any] = {}
    if len(sample) < len(usable):
        facts["looked into"] = f"{len(sample):,} of {len(usable):,}, evenly chosen" + (
            f", of width {width:,}" if len(fitting) < len(usable) else ""
        )
    findings = wrong([f"{len(unreadable):,} arrays cannot be read: {some(unreadable)}"] if unreadable else [])
    return facts | census.facts(), findings + census.findings()


def _missing(usable: Sequence[Entry], split: Split, captions: bool) -> list[Finding]:
    here = {entry.id for entry in usable}
    videos = [video for found in split.videos.values() for video in found]
    wanted = [query.query_id for v in videos for query in v.queries] if captions else [v.video_id for v in videos]
    missing = [id_ for id_ in dict.fromkeys(wanted) if id_ not in here]
    return notes([f"{len(missing):,} of the split's {len(wanted):,} are not in it: {some(missing)}"] if missing else [])


def _rows(entry: Entry) -> int:
    return entry.shape[0] if len(entry.shape) == 2 else 1
