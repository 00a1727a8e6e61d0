"""MSR-VTT: Xu, Mei, Yao, Rui. MSR-VTT: A Large Video Description Dataset for Bridging Video and Language. CVPR 2016.

Licence and access: Microsoft's terms for research; annotations and videos are no longer on its site, and are passed on by
projects that use them (``MSRVTT.zip`` of ArrowLuo/CLIP4Clip has both).

Files: ``MSRVTT_data.json``, or ``train_val_videodatainfo.json`` and ``test_videodatainfo.json`` of the challenge, which tell the
split of each video; or ``train.json``, ``val.json`` and ``test.json`` as hobincar/SGN has them (a dict of videos to their
sentences, without durations). The subsets need ``MSRVTT_train.7k.csv`` or ``MSRVTT_train.9k.csv``, and
``MSRVTT_JSFUSION_test.csv``.

Quirks: videos are trimmed, 10 to 30 s, and their sentences speak of all of it: no moments. Sentences repeat within a video. Ids
of the subsets' lists are of the full data set, whose test videos the 9k training list holds too. A query is named
``<video>#enc#<its place among the video's sentences in the file>``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import csv_rows, json_of, locate
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

SOURCE = "MSRVTT.zip of ArrowLuo/CLIP4Clip"
OFFICIAL = (("MSRVTT_data.json",), ("train_val_videodatainfo.json", "test_videodatainfo.json"))
DIVIDED = {"train": "train.json", "dev": "val.json", "test": "test.json"}
PARTS = {"train": "train", "validate": "dev", "val": "dev", "test": "test"}
LISTS = {"7k": "MSRVTT_train.7k.csv", "1k-a": "MSRVTT_train.9k.csv"}
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
    """A video of the whole data set: the split that the files say, its length in seconds, its sentences."""

    split: str
    duration: float | None
    sentences: Sequence[str]


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order of the files.

    Raises:
        MissingInput: no file with the sentences, or none of the subset's lists.
        CorruptData: a file of another shape; a listed video of which there is no sentence.
    """
    tally: Counter[str] = Counter()
    videos: dict[str, tuple[Video, ...]] = {}
    sources: list[Path] = []
    if not subset:
        clips, sources = _clips(annotations, splits)
        for name in (name for name in DIVIDED if name in splits):
            own = ((video_id, clip) for video_id, clip in clips.items() if clip.split == name)
            videos[name] = tuple(_video(video_id, clip, tally) for video_id, clip in own)
    else:
        if "train" in splits:
            clips, sources = _clips(annotations, SPLITS)
            path = locate(annotations, LISTS[subset], source=SOURCE)
            sources.append(path)
            ids = [row["video_id"] for _, row in csv_rows(path, ("video_id",))]
            videos["train"] = tuple(_video(video_id, _found(clips, video_id, path), tally) for video_id in ids)
        if "test" in splits:
            path = locate(annotations, TESTED, source=SOURCE)
            sources.append(path)
            rows = [row for _, row in csv_rows(path, ("video_id", "sentence"))]
            tested = {row["video_id"]: _Clip("test", None, [row["sentence"]]) for row in rows}
            if len(tested) < len(rows):
                raise CorruptData(f"{path}: {len(rows)} sentences of {len(tested)} videos, where each has one")
            videos["test"] = tuple(_video(video_id, clip, tally) for video_id, clip in tested.items())
    count_repeated((video for found in videos.values() for video in found), tally)
    return Parsed(videos, tuple(sources), tally)


def _clips(annotations: Path, splits: Iterable[str]) -> tuple[dict[str, _Clip], list[Path]]:
    """Every video of these splits, and the files that were read."""
    for names in OFFICIAL:
        if (annotations / names[0]).is_file():
            paths = [locate(annotations, name, source=SOURCE) for name in names]
            return {id_: clip for path in paths for id_, clip in _official(path).items()}, paths
    wanted = {name: annotations / DIVIDED[name] for name in DIVIDED if name in splits}
    if absent := [path for path in wanted.values() if not path.is_file()]:
        known = ", ".join(name for names in OFFICIAL for name in names)
        raise MissingInput(
            f"{annotations}: none of {known} there, nor {absent[0].name}; from {SOURCE}, or hobincar/SGN"
        )
    clips = {
        video_id: _Clip(name, None, list(sentences.values()))
        for name, path in wanted.items()
        for video_id, sentences in json_of(path, dict[str, dict[str, str]]).items()
    }
    return clips, list(wanted.values())


def _official(path: Path) -> dict[str, _Clip]:
    read = json_of(path, _Official)
    sentences: dict[str, list[str]] = {entry["video_id"]: [] for entry in read["videos"]}
    for sentence in read["sentences"]:
        if sentence["video_id"] not in sentences:
            raise CorruptData(f"{path}: a sentence of {sentence['video_id']!r}, which is none of its videos")
        sentences[sentence["video_id"]].append(sentence["caption"])
    clips = {}
    for entry in read["videos"]:
        if entry["split"] not in PARTS:
            raise CorruptData(f"{path}: {entry['video_id']} is in split {entry['split']!r}, none of {', '.join(PARTS)}")
        duration = round(entry["end time"] - entry["start time"], 3)
        clips[entry["video_id"]] = _Clip(PARTS[entry["split"]], duration, sentences[entry["video_id"]])
    return clips


def _found(clips: Mapping[str, _Clip], video_id: str, path: Path) -> _Clip:
    if video_id not in clips:
        raise CorruptData(f"{path}: names {video_id!r}, of which there are no sentences")
    return clips[video_id]


def _video(video_id: str, clip: _Clip, tally: "Counter[str]") -> Video:
    queries = (Query(f"{video_id}#enc#{place}", text) for place, text in enumerate(clip.sentences))
    return Video(video_id, clip.duration, tuple(repaired(query, clip.duration, tally) for query in queries))
