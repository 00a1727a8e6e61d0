"""MS-SL's caption files, ``TextData/<collection><part>.caption.txt``: lines ``<video>#enc#<number> <sentence>``."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prvr.manifests.errors import ConfigurationError, CorruptData
from prvr.manifests.files import write_text
from prvr.manifests.repair import repaired
from prvr.manifests.split import Query, Video

PARTS = {"train": "train", "dev": "val", "test": "test"}
"""Our name of a split to theirs."""


def files(root: Path) -> dict[str, Path]:
    """The caption files of a collection, by our name of the split."""
    paths = {name: root / "TextData" / f"{root.name}{part}.caption.txt" for name, part in PARTS.items()}
    return {name: path for name, path in paths.items() if path.is_file()}


def read(path: Path, tally: "Counter[str]") -> tuple[Video, ...]:
    """The videos in the order in which the file names them; durations and moments are not in it.

    Raises:
        CorruptData: a line without a video, a number and a sentence; it is named.
    """
    queries: dict[str, list[Query]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        query_id, _, text = line.strip().partition(" ")
        video_id = query_id.split("#")[0]
        if not video_id or "#" not in query_id or not text.strip():
            raise CorruptData(f"{path}:{number}: {line[:60]!r}, where '<video>#enc#<number> <sentence>' belongs")
        queries.setdefault(video_id, []).append(repaired(Query(query_id, text), None, tally))
    return tuple(Video(video_id, None, tuple(own)) for video_id, own in queries.items())


def write(root: Path, videos: Mapping[str, Sequence[Video]]) -> None:
    """A caption file for each split. The released codes open all three parts: what is not there is written as another is."""
    present = [name for name in ("test", "dev", "train") if name in videos]
    for name, part in PARTS.items():
        own = videos[name if name in videos else present[0]]
        lines = (f"{query_id} {query.text}\n" for query_id, query in named(own))
        write_text(root / "TextData" / f"{root.name}{part}.caption.txt", "".join(lines))


def named(videos: Iterable[Video]) -> list[tuple[str, Query]]:
    """Queries with the ids that the released codes read: what is before the first ``#`` is the video. Others are given one.

    Raises:
        ConfigurationError: an id of a video or query that such a line cannot carry.
    """
    found = []
    for video in videos:
        if "#" in video.video_id or video.video_id.split() != [video.video_id]:
            raise ConfigurationError(f"{video.video_id!r}: MS-SL's lines cut an id at white space and at '#'")
        for number, query in enumerate(video.queries):
            own = query.query_id.startswith(f"{video.video_id}#") and query.query_id.split() == [query.query_id]
            found.append((query.query_id if own else f"{video.video_id}#enc#{number}", query))
    return found
