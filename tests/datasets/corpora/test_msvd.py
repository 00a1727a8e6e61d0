"""MSVD: its splits apart, its table, and dirt that is made. Its counts: ``test_official.py``."""

import csv
import json
from pathlib import Path

import pytest

from prvr.datasets.corpora import Parsed, msvd
from prvr.manifests import published
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.split import SPLITS, counts_of

HEAD = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description"


def _parse(folder: Path, splits: tuple[str, ...] = SPLITS) -> Parsed:
    return msvd.parse(folder, msvd.Options(), splits=splits)


def _made(folder: Path, ids: list[str], *rows: str, name: str = "test.csv") -> Path:
    (folder / "test_list.txt").write_text("".join(f"{id_}\r\n" for id_ in ids), encoding="utf-8")
    (folder / name).write_text("\ufeff" + "\r\n".join((HEAD, *rows)), encoding="utf-8", newline="")
    return folder


@pytest.mark.parametrize(
    ("split", "videos", "queries", "repeated"),
    [("train", 1200, 48774, 6468), ("dev", 100, 4290, 647), ("test", 670, 27763, 3730)],
)
def test_each_split(split: str, videos: int, queries: int, repeated: int, shared: Path) -> None:
    folder = shared / "data" / "annotations" / "msvd"
    parsed = _parse(folder, (split,))
    assert counts_of(parsed.videos) == {split: {"videos": videos, "queries": queries}}
    assert parsed.repairs == {"sentence of an earlier query, kept": repeated}
    assert {path.name for path in parsed.sources} == {msvd.LISTS[split], "captions_msvd.json"}
    sizes = [len(video.queries) for video in parsed.videos[split]]
    assert min(sizes) >= 18 and max(sizes) <= 81
    assert all(video.duration and video.duration > 0 for video in parsed.videos[split])


@pytest.mark.parametrize(
    ("split", "file", "newlines", "repairs", "queries"),
    [
        ("test", "SGN_test.csv", 7, {"white space in text": 180, "sentence of an earlier query, kept": 3319}, 27768),
        ("dev", "SGN_val.csv", 2, {"white space in text": 33, "sentence of an earlier query, kept": 575}, 4291),
    ],
)
def test_the_real_table_is_a_little_more(
    split: str, file: str, newlines: int, repairs: dict[str, int], queries: int, shared: Path, tmp_path: Path
) -> None:
    real = shared / "data" / "annotations" / "msvd"
    for name in (msvd.LISTS[split], file):
        (tmp_path / name).symlink_to(real / name)
    with (real / file).open(encoding="utf-8", newline="") as table:
        assert sum("\n" in row["Description"] for row in csv.DictReader(table)) == newlines
    parsed, theirs = _parse(tmp_path, (split,)), _parse(real, (split,))
    assert parsed.repairs == repairs and counts_of(parsed.videos)[split]["queries"] == queries
    assert not any("\n" in query.text for video in parsed.videos[split] for query in video.queries)
    assert [(v.video_id, v.duration) for v in parsed.videos[split]] == [
        (v.video_id, v.duration) for v in theirs.videos[split]
    ]
    known = published.load("msvd")
    assert known is not None
    (difference,) = published.compare(known, counts_of(parsed.videos))
    assert difference.why is not None and "captions_msvd.json" in difference.why


def test_the_whole_table(tmp_path: Path) -> None:
    folder = _made(
        tmp_path,
        ["-a_b_5_15", "c_0_7"],
        '-a_b,5,15,1,clean,9,English,"One,\r\n  two."',
        "c,0,7,1,clean,9,German,Eins",
        "c,0,7,1,clean,9,English,one",
        "c,0,7,1,clean,9,English,",
        "-a_b,5,15,1,unverified,9,English,Ñandú",
        "other,0,7,1,clean,9,Slovene,ena",
        name="MSR Video Description Corpus.csv",
    )
    parsed = _parse(folder, ("test",))
    first, second = parsed.videos["test"]
    assert (first.video_id, first.duration, second.duration) == ("-a_b_5_15", 10.0, 7.0)
    assert [(query.query_id, query.text) for query in first.queries] == [
        ("-a_b_5_15#enc#0", "One, two."),
        ("-a_b_5_15#enc#1", "Ñandú"),
    ]
    assert parsed.repairs == {
        "sentence in another language, left out": 1,
        "row without a sentence, left out": 1,
        "white space in text": 1,
    }


@pytest.mark.parametrize(
    ("ids", "row", "what"),
    [
        (["a_0_7", "b_0_7"], "a,0,7,1,clean,9,English,x", r"test_list\.txt:2: names 'b_0_7', of which there are no"),
        (["a_0_7"], "a,0,soon,1,clean,9,English,x", r"test\.csv:2: 'soon', where a number"),
        (["a_0_7"], "a,0,7,1,clean,9,English,x, y", r"test\.csv:2: another number of cells"),
        (["a_7_7"], "a,7,7,1,clean,9,English,x", r"test_list\.txt:1: a video of 0"),
    ],
)
def test_files_of_another_shape(ids: list[str], row: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        _parse(_made(tmp_path, ids, row), ("test",))


@pytest.mark.parametrize(
    ("video_id", "sentence", "what"),
    [
        ("a_7", "x", r"test_list\.txt:1: 'a_7', where '<YouTube id>_<start>_<end>' belongs"),
        ("a_b_c", "x", r"test_list\.txt:1: 'b', where a number"),
        ("a_0_7", " ", "sentences of a_0_7: query 'a_0_7#enc#0' has no text"),
    ],
)
def test_sentences_of_no_clip(video_id: str, sentence: str, what: str, tmp_path: Path) -> None:
    _made(tmp_path, [video_id])
    (tmp_path / "captions_msvd.json").write_text(json.dumps({video_id: [sentence]}), encoding="utf-8")
    with pytest.raises(CorruptData, match=what):
        _parse(tmp_path, ("test",))


def test_only_files_of_the_wanted_splits(tmp_path: Path) -> None:
    folder = _made(tmp_path, ["a_0_7"], "a,0,7,1,clean,9,English,x")
    assert list(_parse(folder, ("test",)).videos) == ["test"]
    with pytest.raises(MissingInput, match=r"no train_list\.txt there; from layer6ai-labs/xpool"):
        _parse(folder)
    (folder / "val_list.txt").write_text("b_0_7\n", encoding="utf-8")
    with pytest.raises(MissingInput, match=r"no captions_msvd\.json or MSR Video Description Corpus\.csv or val\.csv"):
        _parse(folder, ("dev",))
