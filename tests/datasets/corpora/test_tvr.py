"""TVR: what its official files do not show, or show in one place. Its counts: ``test_official.py``."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from prvr.datasets.corpora import Parsed, tvr
from prvr.manifests.errors import CorruptData

ROW: dict[str, Any] = {"vid_name": "v", "duration": 9.5, "ts": [0, 1], "desc": "x", "type": "v", "desc_id": 1}


def _parse(folder: Path, *rows: dict[str, Any], before: str = "") -> Parsed:
    lines = "".join(json.dumps(ROW | row) + "\n" for row in rows)
    (folder / "tvr_val_release.jsonl").write_text(before + lines, encoding="utf-8")
    return tvr.parse(folder, tvr.Options(), splits=["test"])


def test_rows_that_repeat_are_queries_of_their_own(shared: Path) -> None:
    """48 rows repeat the sentence of another of their video, byte for byte; one more does but for its white space."""
    parsed = tvr.parse(shared / "data" / "annotations" / "tvr", tvr.Options(), splits=["test"])
    repeated = parsed.repairs["sentence and moment of an earlier query, kept"]
    assert (repeated, repeated + parsed.repairs["sentence of an earlier query, kept"]) == (16, 49)
    by_id = {video.video_id: video for video in parsed.videos["test"]}
    assert set(Counter(len(video.queries) for video in by_id.values())) == {5}
    moments = Counter((query.text, query.start, query.end) for query in by_id["castle_s04e13_seg02_clip_02"].queries)
    ((_, start, end), times) = moments.most_common(1)[0]
    assert (start, end, times) == (0.0, 90.716, 3)


def test_ids_and_times_stay_what_they_are(tmp_path: Path) -> None:
    rows = [
        {"vid_name": "friends_s06e24-25_seg02_clip_20", "duration": 61, "ts": [0, 2.5], "desc_id": 7},
        {"vid_name": "-a.b", "ts": [1.5, 3], "desc_id": 8, "type": "vt"},
        {"vid_name": "friends_s06e24-25_seg02_clip_20", "duration": 61.0, "ts": [2, 61], "desc": "y", "desc_id": 9},
    ]
    parsed = _parse(tmp_path, *rows, before="\ufeff\n")
    first, second = parsed.videos["test"]
    assert (first.video_id, second.video_id) == ("friends_s06e24-25_seg02_clip_20", "-a.b")
    assert [(query.query_id, query.start, query.end) for query in first.queries] == [("7", 0.0, 2.5), ("9", 2.0, 61.0)]
    assert all(isinstance(time, float) for query in first.queries for time in (query.start, query.end))
    assert second.queries[0].type == "vt" and not parsed.repairs


def test_the_durations_of_the_list_are_compared_and_its_other_videos_left(tmp_path: Path) -> None:
    listed = {"val": {"v": [9.5, 0], "w": [8, 1], "silent": [3.5, 2]}, "train": {}}
    (tmp_path / tvr.DURATIONS).write_text(json.dumps(listed), encoding="utf-8")
    rows = [{}, {"vid_name": "w", "desc_id": 2}, {"vid_name": "unlisted", "desc_id": 3}]
    parsed = _parse(tmp_path, *rows)
    assert [(video.video_id, video.duration) for video in parsed.videos["test"]] == [
        ("v", 9.5),
        ("w", 9.5),
        ("unlisted", 9.5),
    ]
    assert parsed.repairs == {f"another duration in {tvr.DURATIONS}, the queries' kept": 1}
    assert [path.name for path in parsed.sources] == ["tvr_val_release.jsonl", tvr.DURATIONS]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"desc": " \n"}, "jsonl:3: query '1' has no text"),
        ({"duration": 0}, "jsonl:3: a video of 0.0 s"),
        ({"duration": float("nan")}, "jsonl:3: a video of nan s"),
        ({"ts": [0, 1, 2]}, r"jsonl:3: ts: \[0.0, 1.0, 2.0\]"),
        ({"desc_id": "1"}, "jsonl:3: desc_id: .* integer"),
    ],
)
def test_a_row_that_is_none_is_named_by_its_line(row: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        _parse(tmp_path, {"desc_id": 0}, row, before="\n")


def test_subtitles_that_are_none_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = [
        {"text": "x", "start": 3, "end": 2},
        {"text": "\n", "start": 0, "end": 1},
        {"text": "y", "start": 1, "end": 1},
    ]
    path = tmp_path / tvr.SUBTITLES
    path.write_text(json.dumps({"vid_name": "v", "sub": said}) + "\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert [line.text for line in tvr.subtitles(tmp_path, ["v"])["v"]] == ["y"]
    assert "2 lines without a word" in caplog.text
    path.write_text(json.dumps({"vid_name": "v", "sub": [{"text": "x", "start": "0", "end": 1}]}), encoding="utf-8")
    with pytest.raises(CorruptData, match=r"jsonl:1: sub\.0\.start"):
        tvr.subtitles(tmp_path, ["v"])
