"""Charades-STA: Gao, Sun, Yang, Nevatia. TALL: Temporal Activity Localization via Language Query. ICCV 2017, arXiv 1705.02101.

Licence and access: sentences from jiyanggao/TALL; videos and their table from Charades (prior.allenai.org/projects/charades),
under AI2's licence for non-commercial use.

Files: ``charades_sta_train.txt``, ``charades_sta_test.txt``, lines ``<video> <start> <end>##<sentence>``; durations are the
column ``length`` of ``Charades_v1_train.csv`` and ``Charades_v1_test.csv``.

Quirks: a sentence may hold a ``#``; every seventh moment ends up to 1.6 s after its video; four moments of train are inverted,
and with them all of two videos (LEOL6 and AKKWU), which other tools drop: here the queries stay, without times. A query is
named as in MS-SL's caption files: ``<video>#enc#<its place among the video's lines>``.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import csv_rows, locate, number, text_of
from prvr.manifests.errors import CorruptData
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

FILES = {"train": "charades_sta_train.txt", "test": "charades_sta_test.txt"}
TABLES = {"train": "Charades_v1_train.csv", "test": "Charades_v1_test.csv"}
SUBSETS: Mapping[str, str] = {}
_LINE = re.compile(r"(\S+) (\S+) (\S+)##(.*)")


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order in which the files name them.

    Raises:
        MissingInput: a split's file, or its table of durations, is absent.
        CorruptData: a line of another shape, by its number.
    """
    tally: Counter[str] = Counter()
    videos, sources = {}, []
    for name in (name for name in FILES if name in splits):
        sentences = locate(annotations, FILES[name], source="jiyanggao/TALL")
        table = locate(annotations, TABLES[name], source="Charades' annotations, prior.allenai.org/projects/charades")
        videos[name] = _videos(sentences, _durations(table), tally)
        sources += [sentences, table]
    return Parsed(videos, tuple(sources), tally)


def _durations(table: Path) -> dict[str, float]:
    return {row["id"]: number(row["length"], where) for where, row in csv_rows(table, ("id", "length"))}


def _videos(path: Path, durations: Mapping[str, float], tally: "Counter[str]") -> tuple[Video, ...]:
    queries: dict[str, list[Query]] = {}
    for place, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{place}"
        match = _LINE.fullmatch(line.rstrip("\r"))
        if not match:
            raise CorruptData(f"{where}: {line[:60]!r}, where '<video> <start> <end>##<sentence>' belongs")
        video_id, text = match[1], match[4]
        own = queries.setdefault(video_id, [])
        query = Query(f"{video_id}#enc#{len(own)}", text, number(match[2], where), number(match[3], where))
        own.append(repaired(query, durations.get(video_id), tally))
    tally.update({"no duration in the table": sum(video_id not in durations for video_id in queries)})
    videos = tuple(Video(video_id, durations.get(video_id), tuple(own)) for video_id, own in queries.items())
    count_repeated(videos, tally)
    return videos
