"""ActivityNet Captions: Krishna, Hata, Ren, Fei-Fei, Niebles. Dense-Captioning Events in Videos. ICCV 2017, arXiv 1705.00754.

Licence and access: ``captions.zip`` from the project's page at Stanford (cs.stanford.edu/people/ranjaykrishna/densevid), without
a stated licence; videos by YouTube id, of which more than a tenth are gone, the rest by a form on activity-net.org.

Files: ``train.json`` is ``train``, ``val_1.json`` is ``test``. ``val_2.json`` is what a second annotator said of most videos of
``val_1.json``; the field does not report on it, and it is never merged.

Quirks: sentences begin with a space or hold a newline; ends lie up to 0.01 s beyond their video; four moments of train are
inverted or empty. A query is named as in MS-SL's caption files: ``<video>#enc#<place in sentences>``.

The subset ``mssl`` is what MS-SL's released features cover. Its ids are read from MS-SL's own caption files
(``activitynettrain.caption.txt`` and ``activitynettest.caption.txt``, or val) or from ``mssl.train.txt`` and ``mssl.test.txt``,
an id a line, in the same folder. A split without a list stays whole, and is named.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import json_of, length, lines_of, locate, placed
from prvr.manifests import published
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
        MissingInput: a split's file is absent, or all of the subset's lists are.
        CorruptData: a file of another shape; a list of ids that are not the subset's, or not the split's.
    """
    tally: Counter[str] = Counter()
    files = {name: locate(annotations, file, source=SOURCE) for name, file in FILES.items() if name in splits}
    lists = _lists(annotations, files) if subset == "mssl" else {}
    videos = {}
    for name, file in files.items():
        entries = json_of(file, dict[str, _Video])
        if name in lists:
            ids = _covered(lists[name], name)
            if strange := ids - entries.keys():
                raise CorruptData(f"{lists[name]}: {len(strange)} ids that {file.name} lacks, such as {min(strange)}")
            entries = {video_id: entry for video_id, entry in entries.items() if video_id in ids}
        videos[name] = tuple(
            _video(video_id, entry, f"{file}: {video_id}", tally) for video_id, entry in entries.items()
        )
        count_repeated(videos[name], tally)
    return Parsed(videos, (*files.values(), *lists.values()), tally)


def _video(video_id: str, entry: _Video, where: str, tally: "Counter[str]") -> Video:
    times, sentences, duration = entry["timestamps"], entry["sentences"], length(entry["duration"], where)
    if len(times) != len(sentences):
        raise CorruptData(f"{where}: {len(sentences)} sentences and {len(times)} timestamps")
    with placed(where):
        queries = tuple(
            repaired(Query(f"{video_id}#enc#{place}", sentence, start, end), duration, tally)
            for place, (sentence, (start, end)) in enumerate(zip(sentences, times, strict=True))
        )
        return Video(video_id, duration, queries)


def _lists(annotations: Path, splits: Iterable[str]) -> dict[str, Path]:
    """The subset's list of each of these splits; those without one are named in the log."""
    lists = {}
    for split in splits:
        path = next((annotations / name for name in COVERED[split] if (annotations / name).is_file()), None)
        if path:
            lists[split] = path
        else:
            _log.warning(
                "%s stays whole: no list of what the subset mssl has of it, %s", split, " or ".join(COVERED[split])
            )
    if not lists:
        wanted = ", ".join(name for names in COVERED.values() for name in names)
        raise MissingInput(f"{annotations}: no list of the videos of the subset mssl there, none of {wanted}")
    return lists


def _covered(path: Path, split: str) -> set[str]:
    """The ids of a list or of a caption file, whose lines are ``<video>#enc#<place> <text>``."""
    ids = {line.split(maxsplit=1)[0].split("#")[0] for _, line in lines_of(path)}
    digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
    known = published.load("activitynet", "mssl")
    if known and digest != known.ids.get(split, digest):
        raise CorruptData(
            f"{path}: {len(ids)} ids, which are not those that MS-SL's released features cover in {split}"
        )
    return ids
