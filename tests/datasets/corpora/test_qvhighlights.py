"""QVHighlights: its splits apart, and dirt that is made. Its published counts: ``test_official.py``."""

import json
from pathlib import Path
from typing import Any

import pytest

from prvr.datasets.corpora import Parsed, qvhighlights
from prvr.manifests.errors import CorruptData
from prvr.manifests.split import counts_of

ROW: dict[str, Any] = {"qid": 1, "query": "x", "vid": "_v_0.0_150.0", "duration": 150}
SEVERAL, WHITE = "several moments of a query, none kept", "white space in text"


def _parse(folder: Path, *rows: dict[str, Any]) -> Parsed:
    lines = "".join(json.dumps(ROW | row) + "\n" for row in rows)
    (folder / "highlight_val_release.jsonl").write_text(lines, encoding="utf-8")
    return qvhighlights.parse(folder, qvhighlights.Options(), splits=["dev"])


@pytest.mark.parametrize(
    ("split", "counts", "repairs"),
    [
        ("train", {"videos": 7100, "queries": 7218}, {SEVERAL: 2363, WHITE: 87}),
        ("dev", {"videos": 1519, "queries": 1550}, {SEVERAL: 530, WHITE: 16}),
        ("test", {"videos": 1529, "queries": 1542}, {WHITE: 18}),
    ],
)
def test_each_split(split: str, counts: dict[str, int], repairs: dict[str, int], shared: Path) -> None:
    folder = shared / "data" / "annotations" / "qvhighlights"
    parsed = qvhighlights.parse(folder, qvhighlights.Options(), splits=[split])
    assert counts_of(parsed.videos) == {split: counts} and parsed.repairs == repairs
    assert len(parsed.sources) == 1, "the files of other splits are not read"


def test_a_moment_is_given_where_there_is_one(tmp_path: Path) -> None:
    windows: list[dict[str, Any]] = [
        {"relevant_windows": [[2, 4.5]]},
        {"relevant_windows": [[0, 2], [6, 8]]},
        {"relevant_windows": []},
        {},
    ]
    parsed = _parse(tmp_path, *({"qid": n, "query": f"scene {n}"} | window for n, window in enumerate(windows)))
    (video,) = parsed.videos["dev"]
    assert (video.video_id, video.duration) == ("_v_0.0_150.0", 150.0)
    assert [(query.query_id, query.start, query.end) for query in video.queries] == [
        ("0", 2.0, 4.5),
        ("1", None, None),
        ("2", None, None),
        ("3", None, None),
    ]
    assert parsed.repairs == {SEVERAL: 1}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"duration": 148}, "jsonl:2: _v_0.0_150.0 lasts 148.0 s here, 150.0 s before"),
        ({"vid": "w", "duration": 0}, "jsonl:2: a video of 0.0 s"),
        ({"query": "\t"}, "jsonl:2: query '1' has no text"),
        ({"relevant_windows": [[0, 2, 4]]}, r"jsonl:2: relevant_windows\.0"),
        ({"relevant_windows": [["0", 2]]}, r"jsonl:2: relevant_windows\.0\.0: .* number"),
    ],
)
def test_a_row_that_is_none_is_named_by_its_line(row: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        _parse(tmp_path, {"qid": 0}, row)
