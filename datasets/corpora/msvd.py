"""MSVD: Chen, Dolan. Collecting Highly Parallel Data for Paraphrase Evaluation. ACL 2011.

Licence and access: Microsoft's terms for research (the MSR Video Description Corpus); the videos, as clips, from the University
of Texas (cs.utexas.edu/users/ml/clamp/videoDescription).

Files: ``train_list.txt``, ``val_list.txt`` and ``test_list.txt``, an id a line; and the sentences: ``captions_msvd.json`` (as
layer6ai-labs/xpool has it: lower case, no punctuation), or the corpus's own table ``MSR Video Description Corpus.csv``, or the
same cut in three, ``train.csv``, ``val.csv`` and ``test.csv`` (hobincar/SGN; also under ``SGN_train.csv`` and so on).

Quirks: an id is ``<YouTube id>_<start>_<end>``; YouTube ids hold ``_`` and begin with ``-`` at times, so it is cut from the
right. Clips are short and trimmed: no moments. A quoted sentence may hold a newline. Sentences repeat. The table has sentences in
many languages, of which the field takes the English. A query is named ``<video>#enc#<its place among the video's sentences>``.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import csv_rows, json_of, length, lines_of, locate, number, placed
from prvr.manifests.errors import CorruptData
from prvr.manifests.repair import count_repeated, repaired
from prvr.manifests.split import SPLITS, Query, Video

SOURCE = "layer6ai-labs/xpool, folder data/MSVD"
LISTS = {"train": "train_list.txt", "dev": "val_list.txt", "test": "test_list.txt"}
SENTENCES, TABLE = "captions_msvd.json", "MSR Video Description Corpus.csv"
TABLES = {
    "train": ("train.csv", "SGN_train.csv"),
    "dev": ("val.csv", "SGN_val.csv"),
    "test": ("test.csv", "SGN_test.csv"),
}
SUBSETS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


def parse(annotations: Path, options: Options, *, subset: str = "", splits: Sequence[str] = SPLITS) -> Parsed:
    """The videos in the order of the lists.

    Raises:
        MissingInput: a split's list, or all files with its sentences, are absent.
        CorruptData: a file of another shape; a listed video of which there is no sentence; an id without times.
    """
    tally: Counter[str] = Counter()
    wanted = [name for name in LISTS if name in splits]
    lists = {name: locate(annotations, LISTS[name], source=SOURCE) for name in wanted}
    ids = {name: {line.strip(): where for where, line in lines_of(path)} for name, path in lists.items()}
    files = dict.fromkeys(locate(annotations, SENTENCES, TABLE, *TABLES[name], source=SOURCE) for name in wanted)
    listed = {video_id for own in ids.values() for video_id in own}
    sentences: dict[str, Sequence[str]] = {}
    for path in files:
        sentences |= _sentences(path, listed, tally)
    videos = {
        name: tuple(_video(video_id, sentences, where, tally) for video_id, where in own.items())
        for name, own in ids.items()
    }
    for own in videos.values():
        count_repeated(own, tally)
    return Parsed(videos, (*lists.values(), *files), tally)


def _sentences(path: Path, listed: Collection[str], tally: "Counter[str]") -> Mapping[str, Sequence[str]]:
    """The sentences of each video; of a table, of those that are listed."""
    if path.name == SENTENCES:
        return json_of(path, dict[str, list[str]])
    found: dict[str, list[str]] = {}
    for where, row in csv_rows(path, ("VideoID", "Start", "End", "Language", "Description")):
        start, end = (number(row[name], where) for name in ("Start", "End"))
        video_id = f"{row['VideoID']}_{start:g}_{end:g}"
        if video_id not in listed:
            continue
        if row["Language"] != "English":
            tally["sentence in another language, left out"] += 1
        elif not row["Description"].strip():
            tally["row without a sentence, left out"] += 1
        else:
            found.setdefault(video_id, []).append(row["Description"])
    return found


def _video(video_id: str, sentences: Mapping[str, Sequence[str]], where: str, tally: "Counter[str]") -> Video:
    if video_id not in sentences:
        raise CorruptData(f"{where}: names {video_id!r}, of which there are no sentences")
    _, *times = video_id.rsplit("_", 2)
    if len(times) != 2:
        raise CorruptData(f"{where}: {video_id!r}, where '<YouTube id>_<start>_<end>' belongs")
    start, end = (number(time, where) for time in times)
    queries = (Query(f"{video_id}#enc#{place}", text) for place, text in enumerate(sentences[video_id]))
    with placed(f"sentences of {video_id}"):
        return Video(video_id, length(end - start, where), tuple(repaired(query, None, tally) for query in queries))
