"""ActivityNet Captions: Krishna, Hata, Ren, Fei-Fei, Niebles. Dense-Captioning Events in Videos. ICCV 2017, arXiv 1705.00754.

Licence and access: ``captions.zip`` from the project's page at Stanford (cs.stanford.edu/people/ranjaykrishna/densevid), without
a stated licence; videos by YouTube id, of which more than a tenth are gone, the rest by a form on activity-net.org.

Files: ``train.json`` is ``train``, ``val_1.json`` is ``test``. ``val_2.json`` is what a second annotator said of most videos of
``val_1.json``; the field does not report on it, and it is never merged.

Quirks: sentences begin with a space or hold a newline; ends lie up to 0.01 s beyond their video; four moments of train are
inverted or empty. A query is named as in MS-SL's caption files: ``<video>#enc#<place in sentences>``.

The subset ``mssl`` is what MS-SL's released features cover. Its ids are read from MS-SL's own caption files
(``activitynettrain.caption.txt`` and ``activitynettest.caption.txt``, or val) or from ``mssl.train.txt`` and ``mssl.test.txt``,
an id a line, in the same folder.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import json_of, locate, text_of
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

SOURCE = "captions.zip of ActivityNet Captions"
FILES = {"train": "train.json", "test": "val_1.json"}
SUBSETS: Mapping[str, str] = {"mssl": "what MS-SL's released features cover; needs its caption files, or lists of ids"}
COVERED = {
    "train": ("mssl.train.txt", "activitynettrain.caption.txt"),
    "test": ("mssl.test.txt", "activitynettest.caption.txt", "activitynetval.caption.txt"),
}
COVERED_SHA256 = {"test": "471127c4fabedfac8ddc602a1b38b17aec53eadec116a34b58199c9322ab4637"}
"""Of the sorted ids, a line each, where they are known: the released test split's."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


class _Video(TypedDict):
    duration: float
    timestamps: list[tuple[float, float]]
    sentences: list[str]


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order of the files.

    Raises:
        MissingInput: a split's file is absent, or the subset's lists are.
        CorruptData: a file of another shape; a list of ids that are not the subset's.
    """
    tally: Counter[str] = Counter()
    files = {name: locate(annotations, file, source=SOURCE) for name, file in FILES.items() if name in splits}
    videos = {name: _videos(file, tally) for name, file in files.items()}
    count_repeated((video for found in videos.values() for video in found), tally)
    sources = tuple(files.values())
    if subset != "mssl":
        return Parsed(videos, sources, tally)
    lists = {name: path for name in files if (path := _list(annotations, name))}
    if not lists:
        wanted = ", ".join(name for names in COVERED.values() for name in names)
        raise MissingInput(f"{annotations}: no list of the videos of the subset mssl there, none of {wanted}")
    for name in files.keys() - lists.keys():
        _log.warning(
            "no list of the videos of the subset mssl for %s, which stays whole: none of %s", name, COVERED[name]
        )
    covered = {name: _covered(path, name) for name, path in lists.items()}
    kept = {
        name: tuple(video for video in found if name not in covered or video.video_id in covered[name])
        for name, found in videos.items()
    }
    return Parsed(kept, (*sources, *lists.values()), tally)


def _videos(path: Path, tally: "Counter[str]") -> tuple[Video, ...]:
    videos = []
    for video_id, entry in json_of(path, dict[str, _Video]).items():
        times, sentences, duration = entry["timestamps"], entry["sentences"], entry["duration"]
        if len(times) != len(sentences):
            raise CorruptData(f"{path}: {video_id}: {len(sentences)} sentences and {len(times)} timestamps")
        queries = (
            repaired(Query(f"{video_id}#enc#{place}", sentence, start, end), duration, tally)
            for place, (sentence, (start, end)) in enumerate(zip(sentences, times, strict=True))
        )
        videos.append(Video(video_id, duration, tuple(queries)))
    return tuple(videos)


def _list(annotations: Path, split: str) -> Path | None:
    return next((annotations / name for name in COVERED[split] if (annotations / name).is_file()), None)


def _covered(path: Path, split: str) -> set[str]:
    """The ids of a list or of a caption file, whose lines are ``<video>#enc#<place> <text>``."""
    ids = {line.split(maxsplit=1)[0].split("#")[0] for line in text_of(path).split("\n") if line.strip()}
    digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
    if digest != COVERED_SHA256.get(split, digest):
        raise CorruptData(
            f"{path}: {len(ids)} ids, which are not those that MS-SL's released features cover in {split}"
        )
    return ids
