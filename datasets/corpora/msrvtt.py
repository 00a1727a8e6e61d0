"""MSR-VTT: Xu, Mei, Yao, Rui. MSR-VTT: A Large Video Description Dataset for Bridging Video and Language. CVPR 2016.

Licence and access: Microsoft's terms for research; annotations and videos are no longer on its site, and are passed on by
projects that use them (``MSRVTT.zip`` of ArrowLuo/CLIP4Clip has both).

Files: ``MSRVTT_data.json``, or ``train_val_videodatainfo.json`` and ``test_videodatainfo.json`` of the challenge, which tell the
split of each video; or ``train.json``, ``val.json`` and ``test.json`` as hobincar/SGN has them (a dict of videos to their
sentences, without durations; or ``SGN_train.json`` and so on). The subsets need ``MSRVTT_train.7k.csv`` or
``MSRVTT_train.9k.csv``, and ``MSRVTT_JSFUSION_test.csv``, whose sentences need no other file.

Quirks: videos are trimmed, 10 to 30 s, and their sentences speak of all of it: no moments. Sentences repeat within a video. The
9,000 training videos of 1k-a hold 1,990 of the official test split, and none of its own 1,000. A query is named
``<video>#enc#<its place among the video's sentences in the file>``: another order of them is another naming.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import csv_rows, json_of, length, locate, placed
from prvr.manifests.errors import CorruptData
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

SOURCE = "MSRVTT.zip of ArrowLuo/CLIP4Clip, or hobincar/SGN"
OFFICIAL = ("MSRVTT_data.json", "train_val_videodatainfo.json", "test_videodatainfo.json")
FILES = {
    "train": (*OFFICIAL[:2], "train.json", "SGN_train.json"),
    "dev": (*OFFICIAL[:2], "val.json", "SGN_val.json"),
    "test": (OFFICIAL[0], OFFICIAL[2], "test.json", "SGN_test.json"),
}
PARTS = {"train": "train", "validate": "dev", "val": "dev", "test": "test"}
LISTS = {"7k": ("MSRVTT_train.7k.csv", ("train", "dev")), "1k-a": ("MSRVTT_train.9k.csv", SPLITS)}
"""A subset's training videos, and the splits that they are taken from."""
TESTED = "MSRVTT_JSFUSION_test.csv"
SUBSETS: Mapping[str, str] = {
    "7k": "7,010 training videos, and 1,000 test videos with a sentence each (JSFusion's)",
    "1k-a": "9,000 training videos, and the same 1,000 test videos",
}


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


_Entry = TypedDict("_Entry", {"video_id": str, "split": str, "start time": float, "end time": float})


class _Sentence(TypedDict):
    video_id: str
    caption: str


class _Official(TypedDict):
    videos: list[_Entry]
    sentences: list[_Sentence]


@dataclass(frozen=True)
class _Clip:
    """A video of the whole data set: its length in seconds, its sentences, the file that has them."""

    duration: float | None
    sentences: Sequence[str]
    path: Path


type _Clips = dict[str, _Clip]


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order of the files, those of a subset in that of its lists.

    Raises:
        MissingInput: no file with a split's sentences, or none of the subset's lists.
        CorruptData: a file of another shape; a listed video of which there is no sentence.
    """
    if subset:
        clips, sources = _subset(annotations, subset, splits)
    else:
        clips, sources = _clips(annotations, splits)
    tally: Counter[str] = Counter()
    videos = {
        name: tuple(_video(video_id, clip, tally) for video_id, clip in own.items()) for name, own in clips.items()
    }
    for own in videos.values():
        count_repeated(own, tally)
    return Parsed(videos, tuple(sources), tally)


def _subset(annotations: Path, subset: str, splits: Iterable[str]) -> tuple[dict[str, _Clips], list[Path]]:
    listed, parts = LISTS[subset]
    wanted = set(parts) if "train" in splits else set[str]()
    if "test" in splits and any((annotations / name).is_file() for name in FILES["test"][:2]):
        wanted.add("test")  # For the durations.
    whole, sources = _clips(annotations, wanted)
    known = {video_id: clip for own in whole.values() for video_id, clip in own.items()}
    clips: dict[str, _Clips] = {}
    if "train" in splits:
        path = locate(annotations, listed, source=SOURCE)
        sources.append(path)
        clips["train"] = {}
        for where, row in csv_rows(path, ("video_id",)):
            if row["video_id"] not in known:
                raise CorruptData(f"{where}: names {row['video_id']!r}, of which there are no sentences")
            clips["train"][row["video_id"]] = known[row["video_id"]]
    if "test" in splits:
        path = locate(annotations, TESTED, source=SOURCE)
        sources.append(path)
        clips["test"] = {}
        for where, row in csv_rows(path, ("video_id", "sentence")):
            video_id = row["video_id"]
            if video_id in clips["test"]:
                raise CorruptData(f"{where}: a second sentence of {video_id!r}, where each video has one")
            duration = known[video_id].duration if video_id in known else None
            clips["test"][video_id] = _Clip(duration, [row["sentence"]], path)
    return clips, sources


def _clips(annotations: Path, splits: Iterable[str]) -> tuple[dict[str, _Clips], list[Path]]:
    """The videos of these splits, and the files that were read."""
    paths = {name: locate(annotations, *FILES[name], source=SOURCE) for name in FILES if name in splits}
    sources = list(dict.fromkeys(paths.values()))
    official = {path: _official(path) for path in sources if path.name in OFFICIAL}
    return {name: official[path][name] if path in official else _divided(path) for name, path in paths.items()}, sources


def _divided(path: Path) -> _Clips:
    read = json_of(path, dict[str, dict[str, str]])
    return {video_id: _Clip(None, list(sentences.values()), path) for video_id, sentences in read.items()}


def _official(path: Path) -> dict[str, _Clips]:
    read = json_of(path, _Official)
    sentences: dict[str, list[str]] = {entry["video_id"]: [] for entry in read["videos"]}
    for sentence in read["sentences"]:
        if sentence["video_id"] not in sentences:
            raise CorruptData(f"{path}: a sentence of {sentence['video_id']!r}, which is none of its videos")
        sentences[sentence["video_id"]].append(sentence["caption"])
    clips: dict[str, _Clips] = {name: {} for name in SPLITS}
    for entry in read["videos"]:
        video_id, part = entry["video_id"], entry["split"]
        if part not in PARTS:
            raise CorruptData(f"{path}: {video_id} is in split {part!r}, none of {', '.join(PARTS)}")
        duration = length(round(entry["end time"] - entry["start time"], 3), f"{path}: {video_id}")
        clips[PARTS[part]][video_id] = _Clip(duration, sentences[video_id], path)
    return clips


def _video(video_id: str, clip: _Clip, tally: "Counter[str]") -> Video:
    queries = (Query(f"{video_id}#enc#{place}", text) for place, text in enumerate(clip.sentences))
    with placed(f"{clip.path}: {video_id}"):
        return Video(video_id, clip.duration, tuple(repaired(query, clip.duration, tally) for query in queries))
