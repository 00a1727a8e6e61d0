"""TVR: Lei, Yu, Berg, Bansal. TVR: A Large-Scale Dataset for Video-Subtitle Moment Retrieval. ECCV 2020, arXiv 2001.09099.

Licence and access: annotations under MIT, in the folder ``data`` of jayleicn/TVRetrieval. The videos are clips of six
television shows, by TVQA's authors on request (tvqa.cs.unc.edu), frames at 3 a second among them; research only.

Files: ``tvr_train_release.jsonl`` is ``train``, ``tvr_val_release.jsonl`` is ``test``: the field reports on the public
validation part, since the test parts name no videos. Where it is there, ``tvr_video2dur_idx.json`` is held against their
durations. ``tvqa_preprocessed_subtitles.jsonl`` (of TVQA), where it is there, gives the subtitles.

Quirks: a query's id is ``desc_id``, since rows repeat word for word; ids of The Big Bang Theory bear no show
(``s02e14_seg02_clip_02``), and some bear a hyphen. ``type`` says what a query is about: v(ideo), t(ext) or both.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import json_lines, json_of, length, locate, placed
from prvr.manifests.errors import CorruptData
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video
from prvr.manifests.subtitles import Subtitle

SOURCE = "the folder data of jayleicn/TVRetrieval"
FILES = {"train": "tvr_train_release.jsonl", "test": "tvr_val_release.jsonl"}
DURATIONS = "tvr_video2dur_idx.json"
SUBTITLES = "tvqa_preprocessed_subtitles.jsonl"
SUBSETS: Mapping[str, str] = {}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


class _Row(TypedDict):
    vid_name: str
    duration: float
    ts: list[float]
    desc: str
    desc_id: int
    type: NotRequired[str]


class _Subtitles(TypedDict):
    vid_name: str
    sub: list["_Line"]


class _Line(TypedDict):
    text: str
    start: float
    end: float


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos that have queries, in the order in which the files name them.

    Raises:
        MissingInput: a split's file is absent.
        CorruptData: a line of another shape, by its number; a video of two durations, or of one that cannot be.
    """
    tally: Counter[str] = Counter()
    files = {name: locate(annotations, file, source=SOURCE) for name, file in FILES.items() if name in splits}
    videos = {name: _videos(file, tally) for name, file in files.items()}
    sources = list(files.values())
    if (annotations / DURATIONS).is_file():
        sources.append(annotations / DURATIONS)
        listed = {
            video_id: duration
            for part in json_of(annotations / DURATIONS, dict[str, dict[str, tuple[float, int]]]).values()
            for video_id, (duration, _) in part.items()
        }
        for video in (video for found in videos.values() for video in found):
            if video.video_id in listed and listed[video.video_id] != video.duration:
                tally[f"another duration in {DURATIONS}, the queries' kept"] += 1
    return Parsed(videos, tuple(sources), tally)


def subtitles(annotations: Path, video_ids: Collection[str]) -> Mapping[str, tuple[Subtitle, ...]]:
    """What is said in these videos, as TVQA has it; nothing where its file is not there.

    Raises:
        CorruptData: a line of another shape, by its number.
    """
    path = annotations / SUBTITLES
    if not path.is_file():
        return {}
    found = {}
    odd = 0
    for _, row in json_lines(path, _Subtitles):
        if row["vid_name"] in video_ids:
            lines = _said(row["sub"])
            odd += len(row["sub"]) - len(lines)
            if lines:
                found[row["vid_name"]] = lines
    if odd:
        _log.warning("%s: %d lines without a word, or that end before they start, are left out", path, odd)
    return found


def _videos(path: Path, tally: "Counter[str]") -> tuple[Video, ...]:
    queries: dict[str, list[Query]] = {}
    durations: dict[str, float] = {}
    for where, row in json_lines(path, _Row):
        video_id, times = row["vid_name"], row["ts"]
        if len(times) != 2:
            raise CorruptData(f"{where}: ts: {times}, where a start and an end belong")
        duration = length(row["duration"], where)
        if durations.setdefault(video_id, duration) != duration:
            raise CorruptData(f"{where}: {video_id} lasts {duration} s here, {durations[video_id]} s before")
        with placed(where):
            query = Query(str(row["desc_id"]), row["desc"], times[0], times[1], row.get("type"))
            query = repaired(query, duration, tally)
        queries.setdefault(video_id, []).append(query)
    videos = tuple(Video(video_id, durations[video_id], tuple(own)) for video_id, own in queries.items())
    count_repeated(videos, tally)
    return videos


def _said(lines: Sequence[_Line]) -> tuple[Subtitle, ...]:
    cleaned = ((" ".join(line["text"].split()), line["start"], line["end"]) for line in lines)
    return tuple(Subtitle(text, start, end) for text, start, end in cleaned if text and 0 <= start <= end)
