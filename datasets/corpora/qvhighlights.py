"""QVHighlights: Lei, Berg, Bansal. Detecting Moments and Highlights in Videos via Natural Language Queries. NeurIPS 2021,
arXiv 2107.09609.

Licence and access: annotations under CC BY-NC-SA 4.0, in the folder ``data`` of jayleicn/moment_detr; videos are parts of at most
150 s of YouTube's, named ``<YouTube id>_<start>_<end>``, from the same place.

Files: ``highlight_train_release.jsonl`` is ``train``, ``highlight_val_release.jsonl`` is ``dev``, and
``highlight_test_release.jsonl`` is ``test``, whose moments are withheld: it can be retrieved, not grouped by moment-to-video
ratio.

Quirks: a query may have several moments; start and end are given where there is one, and are null otherwise.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import json_lines, length, locate, placed
from prvr.manifests.errors import CorruptData
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

FILES = {
    "train": "highlight_train_release.jsonl",
    "dev": "highlight_val_release.jsonl",
    "test": "highlight_test_release.jsonl",
}
SUBSETS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


class _Row(TypedDict):
    qid: int
    query: str
    vid: str
    duration: float
    relevant_windows: NotRequired[list[tuple[float, float]]]


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order in which the files name them.

    Raises:
        MissingInput: a split's file is absent.
        CorruptData: a line of another shape, by its number; a video of two durations, or of one that cannot be.
    """
    tally: Counter[str] = Counter()
    source = "the folder data of jayleicn/moment_detr"
    files = {name: locate(annotations, file, source=source) for name, file in FILES.items() if name in splits}
    return Parsed({name: _videos(file, tally) for name, file in files.items()}, tuple(files.values()), tally)


def _videos(path: Path, tally: "Counter[str]") -> tuple[Video, ...]:
    queries: dict[str, list[Query]] = {}
    durations: dict[str, float] = {}
    for where, row in json_lines(path, _Row):
        video_id, duration = row["vid"], length(row["duration"], where)
        if durations.setdefault(video_id, duration) != duration:
            raise CorruptData(f"{where}: {video_id} lasts {duration} s here, {durations[video_id]} s before")
        moments = row.get("relevant_windows", [])
        start, end = moments[0] if len(moments) == 1 else (None, None)
        if len(moments) > 1:
            tally["several moments of a query, none kept"] += 1
        with placed(where):
            query = repaired(Query(str(row["qid"]), row["query"], start, end), duration, tally)
        queries.setdefault(video_id, []).append(query)
    videos = tuple(Video(video_id, durations[video_id], tuple(own)) for video_id, own in queries.items())
    count_repeated(videos, tally)
    return videos
