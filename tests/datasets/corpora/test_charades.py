"""Charades-STA: its splits apart, and dirt that is made. Its counts: ``test_official.py``."""

from pathlib import Path

import pytest

from prvr.datasets.corpora import Parsed, charades
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.split import counts_of

AFTER, HAIR = "end after the end of the video", "end a hair after the end of the video"


def _parse(folder: Path, lines: str, table: str = "id,length\nAAAAA,3\n") -> Parsed:
    (folder / "Charades_v1_test.csv").write_text(table, encoding="utf-8")
    (folder / "charades_sta_test.txt").write_text(lines, encoding="utf-8")
    return charades.parse(folder, charades.Options(), splits=["test"])


@pytest.mark.parametrize(
    ("split", "counts", "repairs"),
    [
        # 1,805 and 562 moments end after their video; three of the first are inverted, and counted as such.
        (
            "train",
            {"videos": 5338, "queries": 12408},
            {AFTER: 1800, HAIR: 2, "end before start": 4, "white space in text": 33},
        ),
        ("test", {"videos": 1334, "queries": 3720}, {AFTER: 561, HAIR: 1, "white space in text": 9}),
    ],
)
def test_each_split(split: str, counts: dict[str, int], repairs: dict[str, int], shared: Path) -> None:
    parsed = charades.parse(shared / "data" / "annotations" / "charades", charades.Options(), splits=[split])
    assert counts_of(parsed.videos) == {split: counts} and parsed.repairs == repairs
    lost = [query.query_id for video in parsed.videos[split] for query in video.queries if query.start is None]
    assert len(lost) == repairs.get("end before start", 0)
    assert all(video.duration for video in parsed.videos[split])


@pytest.mark.parametrize("text", ["a##b", "#1 and ##", "person #1 smiled ## twice"])
def test_a_sentence_begins_after_the_first_mark(text: str, tmp_path: Path) -> None:
    (video,) = _parse(tmp_path, f"AAAAA 0 1.5##{text}\n").videos["test"]
    assert [(query.text, query.start, query.end) for query in video.queries] == [(text, 0.0, 1.5)]


def test_videos_that_the_table_lacks_have_no_duration(tmp_path: Path) -> None:
    parsed = _parse(tmp_path, "B 2 900##x\nAAAAA 2 900##x\nB 1 2##y\n")
    assert [(video.video_id, video.duration) for video in parsed.videos["test"]] == [("B", None), ("AAAAA", 3.0)]
    assert [query.query_id for query in parsed.videos["test"][0].queries] == ["B#enc#0", "B#enc#1"]
    assert parsed.repairs == {"no duration in the table": 1, AFTER: 1}
    (tmp_path / "Charades_v1_test.csv").unlink()
    with pytest.raises(MissingInput, match=r"no Charades_v1_test\.csv there; from Charades"):
        charades.parse(tmp_path, charades.Options(), splits=["test"])


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("\nAAAAA 0 1 2##x", "txt:2: 'AAAAA 0 1 2##x'.* a fourth field is PLPNet's"),
        ("AAAAA 0##x", "txt:1: 'AAAAA 0##x', where '<video> <start> <end>##<sentence>' belongs$"),
        ("AAAAA 0 1 x", "txt:1: 'AAAAA 0 1 x', where"),
        ("AAAAA 0 1## ", "txt:1: query 'AAAAA#enc#0' has no text"),
        ("AAAAA 0 1,5##x", "txt:1: '1,5', where a number belongs"),
    ],
)
def test_a_line_that_is_none_is_named(lines: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        _parse(tmp_path, lines)


@pytest.mark.parametrize("seconds", ["0", "-3", "nan", "inf"])
def test_a_length_that_no_video_has_is_named(seconds: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=r"csv:2: a video of"):
        _parse(tmp_path, "AAAAA 0 1##x", f"id,length\nAAAAA,{seconds}\n")
