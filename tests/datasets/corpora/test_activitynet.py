"""ActivityNet Captions: its splits apart, the subset of MS-SL, and dirt that is made. Its counts: ``test_official.py``."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from prvr.datasets.corpora import activitynet
from prvr.manifests.errors import CorruptData, MissingInput

ENTRY: dict[str, Any] = {"duration": 10.0, "timestamps": [[0, 1.5]], "sentences": [" x"]}
WHITE, HAIR, REPEATED = (
    "white space in text",
    "end a hair after the end of the video",
    "sentence of an earlier query, kept",
)


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    """The official files, and what MS-SL's features cover of the test split."""
    own = shared / "data" / "annotations"
    for name in ("train.json", "val_1.json"):
        (tmp_path / name).symlink_to(own / "activitynet" / name)
    (tmp_path / "mssl.test.txt").symlink_to(own / "mssl_style" / "activitynet_mssl_test_video_ids_4430.txt")
    return tmp_path


def _made(folder: Path, entries: object, name: str = "val_1.json") -> Path:
    (folder / name).write_text(json.dumps(entries), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("split", "repairs"),
    [
        # 25,731 sentences of train start with a space, others have white space elsewhere.
        ("train", {WHITE: 25840, HAIR: 261, "moment of zero length": 2, "end before start": 2, REPEATED: 3}),
        ("test", {WHITE: 11695, HAIR: 134, REPEATED: 2}),
    ],
)
def test_the_dirt_of_each_split(split: str, repairs: dict[str, int], shared: Path) -> None:
    parsed = activitynet.parse(shared / "data" / "annotations" / "activitynet", activitynet.Options(), splits=[split])
    assert parsed.repairs == repairs and list(parsed.videos) == [split]
    bad = {video.video_id for video in parsed.videos[split] if any(query.start is None for query in video.queries)}
    known = {"v_N7ppHQNikv8", "v_4rKTw99bM8g", "v_0bosp4-pyTM", "v_rhOtqArO-3Y"}
    assert bad == (known if split == "train" else set())
    assert all((query.end or 0) <= (video.duration or 0) for video in parsed.videos[split] for query in video.queries)


def test_only_the_files_of_the_wanted_splits_are_read(tmp_path: Path) -> None:
    _made(tmp_path, {"v": ENTRY})
    (tmp_path / "val_2.json").write_text("{", encoding="utf-8")
    (tmp_path / "train.json").write_text("{", encoding="utf-8")
    parsed = activitynet.parse(tmp_path, activitynet.Options(), splits=["dev", "test"])
    assert list(parsed.videos) == ["test"] and [path.name for path in parsed.sources] == ["val_1.json"]


def test_the_subset_counts_its_own_repairs_and_says_what_stayed_whole(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    test = activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["test"])
    assert test.repairs == {WHITE: 10530, HAIR: 121, REPEATED: 1} and not caplog.records
    assert [path.name for path in test.sources] == ["val_1.json", "mssl.test.txt"]
    with caplog.at_level(logging.WARNING):
        both = activitynet.parse(folder, activitynet.Options(), subset="mssl")
    assert "train stays whole" in caplog.text and "activitynettrain.caption.txt" in caplog.text
    assert both.videos["test"] == test.videos["test"] and len(both.videos["train"]) == 10009
    with pytest.raises(MissingInput, match="no list of the videos of the subset mssl"):
        activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["train"])


def test_caption_files_of_others_name_the_same_videos(folder: Path, shared: Path) -> None:
    own = activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["test"])
    (folder / "mssl.test.txt").unlink()
    theirs = (
        shared / "data" / "annotations" / "mssl_style" / "multigt" / "activitynet" / "activitynetdenseval.caption.txt"
    )
    (folder / "activitynetval.caption.txt").symlink_to(theirs)
    again = activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["test"])
    assert again.videos == own.videos and again.repairs == own.repairs


def test_lists_of_other_videos_are_refused(folder: Path) -> None:
    ids = (folder / "mssl.test.txt").read_text(encoding="utf-8").split()
    (folder / "mssl.test.txt").unlink()
    (folder / "mssl.test.txt").write_text("\n".join(ids[1:]) + "\n", encoding="utf-8")
    with pytest.raises(CorruptData, match=r"mssl\.test\.txt: 4429 ids, which are not those"):
        activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["test"])
    (folder / "mssl.test.txt").write_text("\ufeff" + "\r\n".join(reversed(ids)), encoding="utf-8")
    assert activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["test"]).videos["test"]
    (folder / "mssl.train.txt").write_text("v_QOlSCBRmfWY\nv_stranger\n", encoding="utf-8")
    with pytest.raises(CorruptData, match=r"1 ids that train\.json lacks, such as v_stranger"):
        activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["train"])


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        (10.0, None),
        (10.01, HAIR),
        (10.000000000000002, HAIR),
        (10.02, "end after the end of the video"),
        (10**9, "end after the end of the video"),
    ],
)
def test_rounding_is_not_an_error(end: float, rule: str | None, tmp_path: Path) -> None:
    entry = {"duration": 10, "timestamps": [[3, end]], "sentences": ["x"]}
    parsed = activitynet.parse(_made(tmp_path, {"-v.a": entry}), activitynet.Options(), splits=["test"])
    (query,) = parsed.videos["test"][0].queries
    assert (query.query_id, query.start, query.end) == ("-v.a#enc#0", 3.0, 10.0)
    assert parsed.repairs == ({rule: 1} if rule else {})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sentences": ["\n "]}, "val_1.json: v: query 'v#enc#0' has no text"),
        ({"sentences": []}, "val_1.json: v: 0 sentences and 1 timestamps"),
        ({"duration": -1}, "val_1.json: v: a video of -1.0 s"),
        ({"duration": True}, r"val_1.json: v\.duration: .* number"),
        ({"timestamps": [["0", 1]]}, r"val_1.json: v\.timestamps\.0\.0: .* number"),
        ({"timestamps": [[0]]}, r"val_1.json: v\.timestamps\.0"),
    ],
)
def test_an_entry_that_is_none_is_named(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        activitynet.parse(_made(tmp_path, {"v": ENTRY | change}), activitynet.Options(), splits=["test"])
