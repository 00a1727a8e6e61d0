"""Charades-STA: Gao, Sun, Yang, Nevatia. TALL: Temporal Activity Localization via Language Query. ICCV 2017, arXiv 1705.02101.

Licence and access: sentences from jiyanggao/TALL; videos and their table from Charades (prior.allenai.org/projects/charades),
under AI2's licence for non-commercial use.

Files: ``charades_sta_train.txt``, ``charades_sta_test.txt``, lines ``<video> <start> <end>##<sentence>``; durations are the
column ``length`` of ``Charades_v1_train.csv`` and ``Charades_v1_test.csv``.

Quirks: a sentence may hold a ``#``; PLPNet's copy has a fourth field before ``##``, and is refused; every seventh moment ends
up to 1.6 s after its video; four moments of train are inverted, and with them all of two videos (LEOL6 and AKKWU), which other
tools drop: here the queries stay, without times. A query is named as in MS-SL's caption files:
``<video>#enc#<its place among the video's lines>``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import csv_rows, length, lines_of, locate, number, placed
from prvr.manifests.errors import CorruptData
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

FILES = {"train": "charades_sta_train.txt", "test": "charades_sta_test.txt"}
TABLES = {"train": "Charades_v1_train.csv", "test": "Charades_v1_test.csv"}
SUBSETS: Mapping[str, str] = {}


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
    rows = csv_rows(table, ("id", "length"))
    return {row["id"]: length(number(row["length"], where), where) for where, row in rows}


def _videos(path: Path, durations: Mapping[str, float], tally: "Counter[str]") -> tuple[Video, ...]:
    queries: dict[str, list[Query]] = {}
    for where, line in lines_of(path):
        head, _, text = line.partition("##")
        fields = head.split()
        if len(fields) != 3:
            fourth = "; a fourth field is PLPNet's: take the file of jiyanggao/TALL" if len(fields) == 4 else ""
            raise CorruptData(f"{where}: {line[:60]!r}, where '<video> <start> <end>##<sentence>' belongs{fourth}")
        video_id, (start, end) = fields[0], (number(field, where) for field in fields[1:])
        own = queries.setdefault(video_id, [])
        with placed(where):
            own.append(repaired(Query(f"{video_id}#enc#{len(own)}", text, start, end), durations.get(video_id), tally))
    if absent := queries.keys() - durations.keys():
        tally["no duration in the table"] += len(absent)
    videos = tuple(Video(video_id, durations.get(video_id), tuple(own)) for video_id, own in queries.items())
    count_repeated(videos, tally)
    return videos
