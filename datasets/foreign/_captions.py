"""MS-SL's caption files, ``TextData/<collection><part>.caption.txt``: lines ``<video>#enc#<number> <sentence>``."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prvr.datasets.corpora._annotations import text_of
from prvr.manifests.errors import ConfigurationError, CorruptData
from prvr.manifests.files import write_text
from prvr.manifests.repair import repaired
from prvr.manifests.split import Query, Video

PARTS = {"train": "train", "dev": "val", "test": "test"}
"""Our name of a split to theirs."""
_log = logging.getLogger(__name__)


def places(root: Path) -> dict[str, Path]:
    """Where the caption files of a collection belong, by our name of the split."""
    return {name: root / "TextData" / f"{root.name}{part}.caption.txt" for name, part in PARTS.items()}


def read(path: Path, tally: "Counter[str]") -> tuple[Video, ...]:
    """The videos in the order in which the file names them; durations and moments are not in it.

    Raises:
        CorruptData: a line without a video, a number and a sentence, or with those of an earlier line; it is named.
    """
    queries: dict[str, list[Query]] = {}
    seen: set[str] = set()
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        query_id, _, text = line.strip().partition(" ")
        video_id = query_id.split("#")[0]
        if not video_id or "#" not in query_id or not text.strip():
            raise CorruptData(f"{path}:{number}: {line[:60]!r}, where '<video>#enc#<number> <sentence>' belongs")
        if query_id in seen:
            raise CorruptData(f"{path}:{number}: {query_id} stands in it twice")
        seen.add(query_id)
        queries.setdefault(video_id, []).append(repaired(Query(query_id, text), None, tally))
    return tuple(Video(video_id, None, tuple(own)) for video_id, own in queries.items())


def write(root: Path, videos: Mapping[str, Sequence[Video]], names: Mapping[tuple[str, str], str]) -> None:
    """A caption file for each split, whose queries have the names of ``named``. The released codes open all three: a split that
    is not there is written as another is."""
    present = [name for name in ("test", "dev", "train") if name in videos]
    for name, path in places(root).items():
        if name not in videos:
            _log.warning("no %s: %s has what %s has, since the released codes open it", name, path.name, present[0])
        lines = (
            f"{names[video.video_id, query.query_id]} {query.text}\n"
            for video in videos.get(name, videos[present[0]])
            for query in video.queries
        )
        write_text(path, "".join(lines))


def named(videos: Iterable[Video]) -> dict[tuple[str, str], str]:
    """For the ids of a video and its query, one that the released codes read: what is before the first ``#`` is the video, and
    white space ends it. Where a query has another, those of its video are numbered, in all splits together.

    Raises:
        ConfigurationError: a video's id that such a line cannot carry; two sentences under one id.
    """
    texts: dict[str, dict[str, str]] = {}
    for video in videos:
        if "#" in video.video_id or video.video_id.split() != [video.video_id]:
            raise ConfigurationError(f"{video.video_id!r}: MS-SL's lines cut an id at white space and at '#'")
        own = texts.setdefault(video.video_id, {})
        for query in video.queries:
            if own.setdefault(query.query_id, query.text) != query.text:
                raise ConfigurationError(
                    f"{video.video_id}: query {query.query_id!r} is another sentence in another split"
                )
    found = {}
    for video_id, own in texts.items():
        kept = all(id_.startswith(f"{video_id}#") and id_.split() == [id_] for id_ in own)
        for number, id_ in enumerate(own):
            found[video_id, id_] = id_ if kept else f"{video_id}#enc#{number}"
    return found
