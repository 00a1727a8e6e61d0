"""Dirt in annotations, and what is done about it: each rule has a name, under which ``split.json`` counts it.

A query is never dropped: times that cannot be right become null, and sentences that say the same stay.
"""

import math
from collections import Counter
from collections.abc import Iterable

from prvr.manifests.split import Query, Video

NOISE = 0.0101
"""Seconds: an end beyond its video by no more is rounding (of ActivityNet's durations, to hundredths), not an error."""


def repaired(query: Query, duration: float | None, tally: "Counter[str]") -> Query:
    """A query with its dirt removed; each rule that changed it is counted in ``tally``. ``duration``: of its video, if known."""
    text = " ".join(query.text.split())
    start, end = query.start, query.end
    if text != query.text:
        tally["white space in text"] += 1
    if (start is None) != (end is None):
        tally["only one of start and end"] += 1
        start = end = None
    if start is not None and end is not None:
        if not (math.isfinite(start) and math.isfinite(end)) or start < 0:
            tally["time not finite or negative"] += 1
            start = end = None
        elif end < start:
            tally["end before start"] += 1
            start = end = None
        elif end == start:
            tally["moment of zero length"] += 1
            start = end = None
        elif duration is not None and start >= duration:
            tally["moment after the end of the video"] += 1
            start = end = None
        elif duration is not None and end > duration:
            beyond = "end a hair after" if end <= duration + NOISE else "end after"
            tally[f"{beyond} the end of the video"] += 1
            end = duration
    return Query(query.query_id, text, start, end, query.type)


def count_repeated(videos: Iterable[Video], tally: "Counter[str]") -> None:
    """Count queries that repeat an earlier one of their video: kept, since each is a query of the published numbers."""
    for video in videos:
        sentences: set[str] = set()
        moments: set[tuple[str, float | None, float | None]] = set()
        for query in video.queries:
            moment = (query.text, query.start, query.end)
            if moment in moments and query.start is not None:
                tally["sentence and moment of an earlier query, kept"] += 1
            elif query.text in sentences:
                tally["sentence of an earlier query, kept"] += 1
            sentences.add(query.text)
            moments.add(moment)
