"""MSR-VTT: its splits apart, the forms of its files, and dirt. Its counts at full size: ``test_official.py``."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from prvr.datasets.corpora import Parsed, msrvtt
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.split import SPLITS, counts_of

PARTS = {"v0": "train", "v1": "train", "v2": "validate", "v3": "test", "v4": "test"}


def _parse(folder: Path, subset: str = "", splits: tuple[str, ...] = SPLITS) -> Parsed:
    return msrvtt.parse(folder, msrvtt.Options(), subset=subset, splits=splits)


def _official(folder: Path, name: str = "MSRVTT_data.json", parts: dict[str, str] = PARTS, **changes: Any) -> None:
    """Two sentences a video, in turn."""
    videos = [
        {"video_id": id_, "split": part, "start time": 7, "end time": 17.25, "category": 9}
        for id_, part in parts.items()
    ]
    sentences = [
        {"video_id": id_, "sen_id": 9 - n, "caption": f" {id_}  {n}"} for n in range(2) for id_ in reversed(parts)
    ]
    document = {"videos": videos, "sentences": sentences} | changes
    (folder / name).write_text("\ufeff" + json.dumps(document), encoding="utf-8")


def _lists(folder: Path) -> None:
    (folder / "MSRVTT_train.7k.csv").write_text("video_id\nv2\nv0\n", encoding="utf-8")
    (folder / "MSRVTT_train.9k.csv").write_text("video_id\r\nv3\r\nv2\r\nv0\r\n", encoding="utf-8")
    (folder / "MSRVTT_JSFUSION_test.csv").write_text(
        'key,vid_key,video_id,sentence\nret0,msr4,v4,"two, or\nmore"\n', encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("split", "videos", "repairs"),
    [
        # COUNTS: 440 sentences with space at an edge (370 and 70) and 1,190 with double spaces (1,038 and 152), some with both;
        # 4,252 repeat in test as they stand, and four more but for their spaces.
        ("test", 2990, {"white space in text": 1355, "sentence of an earlier query, kept": 4256}),
        ("dev", 497, {"white space in text": 213, "sentence of an earlier query, kept": 730}),
    ],
)
def test_real_evaluation_files(split: str, videos: int, repairs: dict[str, int], shared: Path) -> None:
    folder = shared / "data" / "annotations" / "msrvtt"
    parsed = _parse(folder, splits=(split,))
    assert counts_of(parsed.videos) == {split: {"videos": videos, "queries": 20 * videos}}
    assert parsed.repairs == repairs
    (name,) = {"test": ["SGN_test.json"], "dev": ["SGN_val.json"]}[split]
    assert parsed.sources == (folder / name,)
    listed = {"test": "test", "dev": "val"}[split]
    ids = (folder / f"CE_{listed}_list_full.txt").read_text(encoding="utf-8").split()
    assert {video.video_id for video in parsed.videos[split]} == set(ids)
    first = json.loads((folder / name).read_text(encoding="utf-8"))[parsed.videos[split][0].video_id]
    assert [" ".join(text.split()) for text in first.values()] == [q.text for q in parsed.videos[split][0].queries]


def test_the_real_thousand(shared: Path) -> None:
    folder = shared / "data" / "annotations" / "msrvtt"
    parsed = _parse(folder, "1k-a", ("test",))
    assert parsed == _parse(folder, "7k", ("test",)) and not parsed.repairs
    assert parsed.sources == (folder / "MSRVTT_JSFUSION_test.csv",)
    assert counts_of(parsed.videos) == {"test": {"videos": 1000, "queries": 1000}}
    first = parsed.videos["test"][0]
    assert (first.video_id, first.queries[0].query_id) == ("video9770", "video9770#enc#0")
    assert first.queries[0].text == "a person is connecting something to system"
    whole = {
        video.video_id: {q.text for q in video.queries} for video in _parse(folder, splits=("test",)).videos["test"]
    }
    # COUNTS: 965 equal one of the video's 20 sentences byte for byte; without double and edge spaces 988.
    assert sum(video.queries[0].text in whole[video.video_id] for video in parsed.videos["test"]) == 988


@pytest.mark.parametrize(("subset", "videos", "tested"), [("7k", 7010, 0), ("1k-a", 9000, 1990)])
def test_real_training_lists(subset: str, videos: int, tested: int, shared: Path, tmp_path: Path) -> None:
    """All ids of the lists are of the data set, and none is of the thousand; 1k-a trains on videos of the official test."""
    real = shared / "data" / "annotations" / "msrvtt"
    for name in (msrvtt.LISTS[subset][0], msrvtt.TESTED):
        (tmp_path / name).symlink_to(real / name)
    official = {
        name: (real / f"CE_{name}_list_full.txt").read_text(encoding="utf-8").split()
        for name in ("train", "val", "test")
    }
    for name, listed in official.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({id_: {"0": "x"} for id_ in listed}), encoding="utf-8")
    parsed = _parse(tmp_path, subset)
    assert counts_of(parsed.videos)["train"] == {"videos": videos, "queries": videos}
    ids = {name: {video.video_id for video in own} for name, own in parsed.videos.items()}
    assert not ids["train"] & ids["test"] and len(ids["train"] & set(official["test"])) == tested
    with (real / msrvtt.LISTS[subset][0]).open(encoding="utf-8", newline="") as file:
        assert [row["video_id"] for row in csv.DictReader(file)] == [v.video_id for v in parsed.videos["train"]]


def test_official_files_whole_or_in_two(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    _official(tmp_path / "one")
    trained = {id_: part for id_, part in PARTS.items() if part != "test"}
    _official(tmp_path / "two", "train_val_videodatainfo.json", trained)
    with pytest.raises(MissingInput, match=r"no MSRVTT_data\.json or test_videodatainfo\.json or test\.json"):
        _parse(tmp_path / "two")
    assert list(_parse(tmp_path / "two", splits=("train",)).videos) == ["train"]
    _official(tmp_path / "two", "test_videodatainfo.json", dict.fromkeys(PARTS.keys() - trained.keys(), "test"))
    one, two = _parse(tmp_path / "one"), _parse(tmp_path / "two")
    assert {name: set(own) for name, own in one.videos.items()} == {name: set(own) for name, own in two.videos.items()}
    assert [video.video_id for video in one.videos["train"]] == ["v0", "v1"]
    video = one.videos["dev"][0]
    assert (video.video_id, video.duration) == ("v2", 10.25)
    assert [(query.query_id, query.text, query.start) for query in video.queries] == [
        ("v2#enc#0", "v2 0", None),
        ("v2#enc#1", "v2 1", None),
    ]
    assert len(one.sources) == 1 and len(two.sources) == 2


def test_subsets(tmp_path: Path) -> None:
    _official(tmp_path)
    _lists(tmp_path)
    small, large = _parse(tmp_path, "7k"), _parse(tmp_path, "1k-a")
    assert [video.video_id for video in small.videos["train"]] == ["v2", "v0"]
    assert [video.video_id for video in large.videos["train"]] == ["v3", "v2", "v0"]
    assert small.videos["test"] == large.videos["test"]
    (tested,) = small.videos["test"]
    assert (tested.video_id, tested.duration, tested.queries[0].text) == ("v4", 10.25, "two, or more")
    assert {path.name for path in small.sources} == {
        "MSRVTT_data.json", "MSRVTT_train.7k.csv", "MSRVTT_JSFUSION_test.csv"
    }  # fmt: skip
    assert list(_parse(tmp_path, "7k", ("dev",)).videos) == []


def test_a_subset_reads_no_file_that_it_has_no_use_for(tmp_path: Path) -> None:
    _lists(tmp_path)
    for name, id_ in (("train", "v0"), ("val", "v2")):
        (tmp_path / f"{name}.json").write_text(json.dumps({id_: {"3": "x", "1": "y"}}), encoding="utf-8")
    (video, _) = _parse(tmp_path, "7k").videos["train"]
    assert [query.text for query in video.queries] == ["x", "y"] and video.duration is None
    with pytest.raises(MissingInput, match=r"or test\.json or SGN_test\.json there; from "):
        _parse(tmp_path, "1k-a")
    (tmp_path / "test.json").write_text("{}", encoding="utf-8")
    (tmp_path / "MSRVTT_train.9k.csv").unlink()
    with pytest.raises(MissingInput, match=r"no MSRVTT_train\.9k\.csv there; from "):
        _parse(tmp_path, "1k-a")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sentences": [{"video_id": "v9", "caption": "x"}]}, "a sentence of 'v9', which is none of its videos"),
        ({"sentences": [{"video_id": "v0", "caption": " "}]}, r"MSRVTT_data\.json: v0: query 'v0#enc#0' has no text"),
        ({"sentences": [{"video_id": "v0", "caption": 7}]}, "sentences.0.caption: .*string"),
        ({"videos": [{"video_id": "v0", "split": "dev", "start time": 0, "end time": 1}]}, "v0 is in split 'dev'"),
        ({"videos": [{"video_id": "v0", "split": "test", "start time": 2, "end time": 1}]}, "v0: a video of -1"),
        ({"videos": [{"video_id": "v0", "split": "test", "start time": "2", "end time": 1}]}, "start time: .*number"),
    ],
)
def test_files_of_another_shape(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    _official(tmp_path, **({"sentences": []} | changes))
    with pytest.raises(CorruptData, match=what):
        _parse(tmp_path)


def test_lists_of_other_videos(tmp_path: Path) -> None:
    _official(tmp_path)
    _lists(tmp_path)
    (tmp_path / "MSRVTT_train.7k.csv").write_text("video_id\nv0\nv9\n", encoding="utf-8")
    with pytest.raises(CorruptData, match=r"7k\.csv:3: names 'v9', of which there are no sentences"):
        _parse(tmp_path, "7k")
    with (tmp_path / "MSRVTT_JSFUSION_test.csv").open("a", encoding="utf-8") as file:
        file.write("ret1,msr4,v4,again\n")
    with pytest.raises(CorruptData, match=r"test\.csv:4: a second sentence of 'v4'"):
        _parse(tmp_path, "1k-a", ("test",))
