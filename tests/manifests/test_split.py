"""Splits on disk, and the repair of a query."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.repair import repaired
from prvr.manifests.split import Query, Split, Video

IDS = ["a.b", "../x", "/abs", "-4wsuPCjDBc_5_15", "vidéo", "x" * 300, "line\u2028separator"]


def _split() -> Split:
    videos = tuple(Video(id_, 10.0, (Query(f"{id_}#enc#0", f"about {id_}", 1.0, 2.0),)) for id_ in IDS)
    return Split("made", "published", {"train": videos, "test": videos[:2]}, repairs={"white space in text": 3})


def test_read_gives_what_was_written(tmp_path: Path) -> None:
    _split().write(tmp_path)
    assert Split.read(tmp_path) == _split()


def test_lines_have_the_documented_fields(tmp_path: Path) -> None:
    _split().write(tmp_path)
    line = json.loads((tmp_path / "train.jsonl").read_text(encoding="utf-8").split("\n")[0])
    query = {"query_id": "a.b#enc#0", "text": "about a.b", "start": 1.0, "end": 2.0, "type": None}
    assert line == {"video_id": "a.b", "duration": 10.0, "queries": [query]}
    head = json.loads((tmp_path / "split.json").read_text(encoding="utf-8"))
    assert head["counts"] == {"train": {"videos": 7, "queries": 7}, "test": {"videos": 2, "queries": 2}}


def test_a_video_of_train_in_another_split_is_recorded(tmp_path: Path) -> None:
    _split().write(tmp_path)
    assert _split().overlap() == {"test": ["a.b", "../x"]}
    head = json.loads((tmp_path / "split.json").read_text(encoding="utf-8"))
    assert head["overlap"] == {"test": 2} and head["subset"] == "" and head["left_out"] == {}
    assert Split("made", "published", {"train": _split().videos["train"]}).overlap() == {}


def test_a_split_that_is_gone_leaves_no_file(tmp_path: Path) -> None:
    _split().write(tmp_path)
    Split("made", "published", {"train": _split().videos["train"]}).write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split.json", "train.jsonl"]


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    _split().write(tmp_path)
    path = tmp_path / "train.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("about a.b", "about b.a"), encoding="utf-8")
    with pytest.raises(CorruptData, match="changed since"):
        Split.read(tmp_path)


def test_an_absent_split_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="prvr-build-split"):
        Split.read(tmp_path)


def test_the_digest_is_of_the_lines() -> None:
    one, other = (
        _split(),
        Split("other", "heldout", {"test": _split().videos["test"], "train": _split().videos["train"]}),
    )
    assert one.digest() == other.digest()
    assert one.digest() != Split("made", "published", {"train": one.videos["train"]}).digest()


@pytest.mark.parametrize(
    "videos",
    [
        {"train": (Video("a", None, ()), Video("a", None, ()))},
        {"train": (Video("a", None, (Query("q", "x"),)), Video("b", None, (Query("q", "y"),)))},
        {"val": (Video("a", None, ()),)},
    ],
    ids=["a video twice", "a query twice", "an unknown split"],
)
def test_what_cannot_be_told_apart_is_refused(videos: dict[str, tuple[Video, ...]]) -> None:
    with pytest.raises(ConfigurationError):
        Split("made", "published", videos)


@pytest.mark.parametrize(
    ("start", "end", "duration", "expected", "rule"),
    [
        (1.0, 2.0, 10.0, (1.0, 2.0), None),
        (5.0, 12.0, 10.0, (5.0, 10.0), "end after the end of the video"),
        (11.0, 12.0, 10.0, (None, None), "moment after the end of the video"),
        (3.0, 2.0, None, (None, None), "end before start"),
        (2.0, 2.0, None, (None, None), "moment of zero length"),
        (-1.0, 2.0, None, (None, None), "time not finite or negative"),
        (0.0, math.nan, None, (None, None), "time not finite or negative"),
        (None, 2.0, None, (None, None), "only one of start and end"),
    ],
)
def test_times_that_cannot_be_right_become_null(
    start: float | None,
    end: float | None,
    duration: float | None,
    expected: tuple[float | None, float | None],
    rule: str | None,
) -> None:
    tally: Counter[str] = Counter()
    query = repaired(Query("q", "a dog", start, end), duration, tally)
    assert (query.start, query.end) == expected
    assert tally == ({rule: 1} if rule else {})


def test_white_space_is_one_space() -> None:
    tally: Counter[str] = Counter()
    assert repaired(Query("q", " a\n dog\t runs "), None, tally).text == "a dog runs"
    assert tally == {"white space in text": 1}
