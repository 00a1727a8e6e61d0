"""MSVD: Chen, Dolan. Collecting Highly Parallel Data for Paraphrase Evaluation. ACL 2011.

Licence and access: Microsoft's terms for research (the MSR Video Description Corpus); the videos, as clips, from the University
of Texas (cs.utexas.edu/users/ml/clamp/videoDescription).

Files: ``train_list.txt``, ``val_list.txt`` and ``test_list.txt``, an id a line; and the sentences: ``captions_msvd.json`` (as
layer6ai-labs/xpool has it: lower case, no punctuation), or the corpus's own table ``MSR Video Description Corpus.csv``, or the
same cut in three, ``train.csv``, ``val.csv`` and ``test.csv`` (hobincar/SGN).

Quirks: an id is ``<YouTube id>_<start>_<end>``; YouTube ids hold ``_`` and begin with ``-`` at times, so it is cut from the
right. Clips are short and trimmed: no moments. A quoted sentence may hold a newline. Sentences repeat. The table has sentences in
many languages, of which the field takes the English. A query is named ``<video>#enc#<its place among the video's sentences>``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import csv_rows, json_of, locate, number, text_of
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

LISTS = {"train": "train_list.txt", "dev": "val_list.txt", "test": "test_list.txt"}
SENTENCES, TABLE = "captions_msvd.json", "MSR Video Description Corpus.csv"
TABLES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}
SUBSETS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order of the lists.

    Raises:
        MissingInput: a split's list, or all files with sentences, are absent.
        CorruptData: a file of another shape; a listed video of which there is no sentence; an id without times.
    """
    tally: Counter[str] = Counter()
    source = "layer6ai-labs/xpool, folder data/MSVD"
    lists = {name: locate(annotations, LISTS[name], source=source) for name in LISTS if name in splits}
    sentences, sources = _sentences(annotations, list(lists), tally)
    videos = {
        name: tuple(_video(video_id, sentences, path, tally) for video_id in text_of(path).split())
        for name, path in lists.items()
    }
    count_repeated((video for found in videos.values() for video in found), tally)
    return Parsed(videos, (*lists.values(), *sources), tally)


def _sentences(
    annotations: Path, splits: Sequence[str], tally: "Counter[str]"
) -> tuple[Mapping[str, Sequence[str]], list[Path]]:
    """The sentences of each video, and the files that were read."""
    if (annotations / SENTENCES).is_file():
        return json_of(annotations / SENTENCES, dict[str, list[str]]), [annotations / SENTENCES]
    whole = annotations / TABLE
    paths = [whole] if whole.is_file() else [annotations / TABLES[name] for name in splits]
    if absent := [path.name for path in paths if not path.is_file()]:
        raise MissingInput(
            f"{annotations}: no {SENTENCES} there, no {TABLE}, and no {', '.join(absent)}; from layer6ai-labs/xpool"
        )
    found: dict[str, list[str]] = {}
    for path in paths:
        for where, row in csv_rows(path, ("VideoID", "Start", "End", "Language", "Description")):
            if row["Language"] != "English":
                tally["sentence in another language, left out"] += 1
            elif not row["Description"].strip():
                tally["row without a sentence, left out"] += 1
            else:
                start, end = (int(number(row[name], where)) for name in ("Start", "End"))
                found.setdefault(f"{row['VideoID']}_{start}_{end}", []).append(row["Description"])
    return found, paths


def _video(video_id: str, sentences: Mapping[str, Sequence[str]], path: Path, tally: "Counter[str]") -> Video:
    if video_id not in sentences:
        raise CorruptData(f"{path}: names {video_id!r}, of which there are no sentences")
    start, end = (number(text, f"{path}: {video_id}") for text in video_id.rsplit("_", 2)[1:])
    queries = (Query(f"{video_id}#enc#{place}", text) for place, text in enumerate(sentences[video_id]))
    return Video(video_id, end - start, tuple(repaired(query, None, tally) for query in queries))
