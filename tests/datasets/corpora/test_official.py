"""The official files of each corpus, as far as they are at hand, give the published counts; their dirt is repaired by rule."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prvr.datasets import corpora
from prvr.datasets.corpora import Parsed, activitynet, charades, msrvtt, msvd, qvhighlights, tvr
from prvr.manifests import published
from prvr.manifests.errors import CorruptData, MissingInput
from prvr.manifests.published import Difference
from prvr.manifests.split import counts_of
from prvr.manifests.subtitles import Subtitle

type Link = Callable[[dict[str, str]], Path]
TVR = {"tvr_train_release.jsonl": "tvr/tvr_train_PARTIAL_from_tvr_it.jsonl"}
TVR |= {"tvr_video2dur_idx.json": "tvr/tvr_video2dur_idx.json"}


@pytest.fixture
def link(shared: Path, tmp_path: Path) -> Link:
    """A function that makes a folder of annotations: names in it, and the shared files that stand under them."""

    def make(files: dict[str, str]) -> Path:
        folder = tmp_path / "annotations"
        folder.mkdir(exist_ok=True)
        for name, target in files.items():
            (folder / name).symlink_to(shared / "data" / "annotations" / target)
        return folder

    return make


def _differences(name: str, parsed: Parsed, subset: str = "") -> tuple[Difference, ...]:
    known = published.load(name, subset)
    assert known is not None
    return published.compare(known, counts_of(parsed.videos))


def _queries(parsed: Parsed) -> list[Any]:
    return [query for videos in parsed.videos.values() for video in videos for query in video.queries]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_tvr_test(shared: Path) -> None:
    parsed = tvr.parse(shared / "data" / "annotations" / "tvr", tvr.Options(), splits=["test"])
    assert _differences("tvr", parsed) == ()
    # 1,469 sentences with space at an edge and 95 with double spaces; some have both.
    assert parsed.repairs == {
        "white space in text": 1555,
        "sentence and moment of an earlier query, kept": 16,
        "sentence of an earlier query, kept": 33,
    }
    types = [query.type for query in _queries(parsed)]
    assert {kind: types.count(kind) for kind in set(types)} == {"v": 8097, "vt": 1834, "t": 964}
    assert len({query.query_id for query in _queries(parsed)}) == 10895
    assert all(query.start is not None for query in _queries(parsed))


def test_tvr_train_as_far_as_it_is_there_and_at_full_size(link: Link) -> None:
    folder = link(TVR)
    parsed = tvr.parse(folder, tvr.Options(), splits=["train"])
    found = {(one.split, one.what): (one.found, one.published, one.why) for one in _differences("tvr", parsed)}
    assert found == {("train", "videos"): (2375, 17435, None), ("train", "queries"): (8009, 87175, None)}
    # The whole file is not at hand: one of its size, of its ids and durations.
    (folder / "tvr_train_release.jsonl").unlink()
    listed = json.loads((folder / "tvr_video2dur_idx.json").read_text(encoding="utf-8"))["train"]
    with (folder / "tvr_train_release.jsonl").open("w", encoding="utf-8") as file:
        for number, (video_id, (duration, _)) in enumerate(listed.items()):
            for place in range(5):
                row = {"vid_name": video_id, "duration": duration, "ts": [0, duration / 2], "desc": f"sentence {place}"}
                file.write(json.dumps(row | {"type": "v", "desc_id": 5 * number + place}) + "\n")
    parsed = tvr.parse(folder, tvr.Options(), splits=["train"])
    assert _differences("tvr", parsed) == () and not parsed.repairs


def test_tvr_subtitles(tmp_path: Path) -> None:
    assert tvr.subtitles(tmp_path, {"a"}) == {}
    said = [{"text": " two\nwords ", "start": 0, "end": 1.5}, {"text": " ", "start": 2, "end": 3}]
    lines = [
        {"vid_name": "a", "sub": said},
        {"vid_name": "b", "sub": [{"text": "elsewhere", "start": 0, "end": 1}]},
        {"vid_name": "c", "sub": []},
    ]
    (tmp_path / tvr.SUBTITLES).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert tvr.subtitles(tmp_path, {"a", "c"}) == {"a": (Subtitle("two words", 0, 1.5),)}


def test_activitynet(shared: Path) -> None:
    parsed = activitynet.parse(shared / "data" / "annotations" / "activitynet", activitynet.Options())
    assert _differences("activitynet", parsed) == ()
    assert {rule: count for rule, count in parsed.repairs.items() if "white" not in rule} == {
        "end a hair after the end of the video": 261 + 134,
        "end before start": 2,
        "moment of zero length": 2,
        "sentence of an earlier query, kept": 5,
    }
    first = parsed.videos["train"][0]
    assert (first.video_id, first.queries[1].query_id) == ("v_QOlSCBRmfWY", "v_QOlSCBRmfWY#enc#1")
    by_id = {video.video_id: video for video in parsed.videos["train"]}
    assert sum(query.start is None for query in by_id["v_0bosp4-pyTM"].queries) == 1
    assert all("\n" not in query.text for query in _queries(parsed))
    assert sum("#" in query.text for query in _queries(parsed)) == 6 + 8


def test_what_mssls_features_cover_of_activitynet(link: Link) -> None:
    folder = link({"train.json": "activitynet/train.json", "val_1.json": "activitynet/val_1.json"})
    with pytest.raises(MissingInput, match=r"none of mssl\.train\.txt"):
        activitynet.parse(folder, activitynet.Options(), subset="mssl")
    link({"mssl.test.txt": "mssl_style/activitynet_mssl_test_video_ids_4430.txt"})
    parsed = activitynet.parse(folder, activitynet.Options(), subset="mssl")
    assert counts_of(parsed.videos)["test"] == {"videos": 4430, "queries": 15753}
    assert [one.why is not None for one in _differences("activitynet", parsed, "mssl")] == [True, True]
    # Its caption files serve as well: each line begins with a video's id.
    kept = {video.video_id for video in parsed.videos["test"]}
    (folder / "mssl.test.txt").unlink()
    captions = "".join(f"{id_}#enc#0 a sentence\n" for id_ in sorted(kept))
    (folder / "activitynettest.caption.txt").write_text(captions, encoding="utf-8")
    again = activitynet.parse(folder, activitynet.Options(), subset="mssl")
    assert again.videos["test"] == parsed.videos["test"]
    (folder / "activitynettest.caption.txt").write_text("v_--1DO2V4K74#enc#0 x\n", encoding="utf-8")
    with pytest.raises(CorruptData, match="1 ids, which are not those"):
        activitynet.parse(folder, activitynet.Options(), subset="mssl", splits=["test"])


def test_charades(shared: Path) -> None:
    parsed = charades.parse(shared / "data" / "annotations" / "charades", charades.Options())
    assert _differences("charades", parsed) == ()
    # 2,367 moments end after their video; three of them are inverted as well.
    assert {rule: count for rule, count in parsed.repairs.items() if count} == {
        "end after the end of the video": 2361,
        "end a hair after the end of the video": 3,
        "end before start": 4,
        "white space in text": 33 + 9,
    }
    assert sum("#" in query.text for query in _queries(parsed)) == 7
    by_id = {video.video_id: video for videos in parsed.videos.values() for video in videos}
    assert all(query.start is None for id_ in ("LEOL6", "AKKWU") for query in by_id[id_].queries)
    assert by_id["LEOL6"].duration == 6.25


@pytest.mark.parametrize(("name", "count"), [("activitynet", 15753), ("charades", 3720)])
def test_queries_are_named_as_in_mssls_caption_files(name: str, count: int, shared: Path) -> None:
    corpus = corpora.load(name)
    parsed = corpus.parse(shared / "data" / "annotations" / name, corpus.Options(), splits=["test"])
    texts = {query.query_id: query.text for query in _queries(parsed)}
    path = shared / "data" / "annotations" / "mssl_style" / "multigt" / name / f"{name}denseval.gt.jsonl"
    theirs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(theirs) == count
    # Their sentences have no punctuation where ours have the official one.
    assert all(_words(texts[one["query_id"]]) == _words(one["caption"]) for one in theirs)


def test_qvhighlights(shared: Path) -> None:
    parsed = qvhighlights.parse(shared / "data" / "annotations" / "qvhighlights", qvhighlights.Options())
    assert _differences("qvhighlights", parsed) == ()
    assert counts_of(parsed.videos)["test"]["queries"] == 1542
    several = parsed.repairs["several moments of a query, none kept"]
    assert sum(query.start is None for query in _queries(parsed)) == several + 1542


def test_msrvtt_evaluation(link: Link) -> None:
    files = {"test.json": "msrvtt/SGN_test.json", "val.json": "msrvtt/SGN_val.json"}
    folder = link(files | {"MSRVTT_JSFUSION_test.csv": "msrvtt/MSRVTT_JSFUSION_test.csv"})
    parsed = msrvtt.parse(folder, msrvtt.Options(), splits=["dev", "test"])
    assert _differences("msrvtt", parsed) == ()
    assert parsed.repairs["sentence of an earlier query, kept"] >= 4252
    assert _differences("msrvtt", msrvtt.parse(folder, msrvtt.Options(), subset="1k-a", splits=["test"]), "1k-a") == ()
    with pytest.raises(MissingInput, match=r"or train\.json .* there; from MSRVTT\.zip"):
        msrvtt.parse(folder, msrvtt.Options())


@pytest.mark.parametrize("subset", ["", "7k", "1k-a"])
def test_msrvtt_at_full_size(subset: str, link: Link, shared: Path) -> None:
    """Its sentences are not at hand: made ones, of the ids, splits and times of all 10,000 videos."""
    names = ("MSRVTT_JSFUSION_test.csv", "MSRVTT_train.7k.csv", "MSRVTT_train.9k.csv")
    folder = link({name: f"msrvtt/{name}" for name in names})
    meta = shared / "data" / "annotations" / "msrvtt" / "videos_meta_from_crux82.json"
    videos = json.loads(meta.read_text(encoding="utf-8"))
    sentences = [
        {"video_id": video["video_id"], "sen_id": 20 * row + place, "caption": f"sentence {place}"}
        for row, video in enumerate(videos)
        for place in range(20)
    ]
    (folder / "MSRVTT_data.json").write_text(json.dumps({"videos": videos, "sentences": sentences}), encoding="utf-8")
    parsed = msrvtt.parse(folder, msrvtt.Options(), subset=subset)
    assert _differences("msrvtt", parsed, subset) == ()
    assert all(9 <= (video.duration or 0) <= 32 for video in parsed.videos["train"])
    ids = {name: {video.video_id for video in own} for name, own in parsed.videos.items()}
    assert not ids["train"] & ids["test"]


def test_msvd(shared: Path, link: Link) -> None:
    parsed = msvd.parse(shared / "data" / "annotations" / "msvd", msvd.Options())
    assert _differences("msvd", parsed) == () and len(_queries(parsed)) == 80827
    assert parsed.repairs == {"sentence of an earlier query, kept": 10845}
    first = parsed.videos["train"][0]
    assert (first.video_id, first.duration) == ("-4wsuPCjDBc_5_15", 10.0)
    # The corpus's own table has quoted newlines, and five sentences more.
    folder = link({"test.csv": "msvd/SGN_test.csv", "test_list.txt": "msvd/test_list.txt"})
    table = msvd.parse(folder, msvd.Options(), splits=["test"])
    (difference,) = _differences("msvd", table)
    assert (difference.found, difference.published) == (27768, 27763) and difference.why
    assert all("\n" not in query.text for query in _queries(table))


ROW = {"vid_name": "v", "duration": 9.5, "ts": [0, 1], "desc": "x", "type": "v", "desc_id": 1}


@pytest.mark.parametrize(
    ("name", "file", "text", "what"),
    [
        ("tvr", "tvr_val_release.jsonl", json.dumps(ROW | {"duration": "9.5"}), r"jsonl:1: duration: .* number"),
        ("tvr", "tvr_val_release.jsonl", json.dumps(ROW | {"duration": True}), r"jsonl:1: duration: .* number"),
        ("tvr", "tvr_val_release.jsonl", json.dumps(ROW | {"ts": [0]}), r"jsonl:1: ts: \[0"),
        ("tvr", "tvr_val_release.jsonl", json.dumps(ROW) + "\n{", r"jsonl:2: "),
        (
            "tvr",
            "tvr_val_release.jsonl",
            json.dumps(ROW) + "\n" + json.dumps(ROW | {"duration": 3}),
            "lasts 3.0 s here",
        ),
        (
            "activitynet",
            "val_1.json",
            '{"v": {"duration": 1, "timestamps": [], "sentences": ["x"]}}',
            "1 sentences and 0",
        ),
        ("activitynet", "val_1.json", "[]", "val_1.json: "),
        ("charades", "charades_sta_test.txt", "AAAAA 0.0 1.0 x##fourth field", "txt:1: 'AAAAA 0.0 1.0 x##fourth"),
        ("charades", "charades_sta_test.txt", "AAAAA 0.0 one##x", "txt:1: 'one', where a number"),
        ("qvhighlights", "highlight_test_release.jsonl", '{"qid": 1}', r"jsonl:1: query: Field required"),
    ],
)
def test_lines_of_another_shape_are_named(name: str, file: str, text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    (tmp_path / "Charades_v1_test.csv").write_text("id,length\nAAAAA,3\n", encoding="utf-8")
    corpus = corpora.load(name)
    with pytest.raises(CorruptData, match=what):
        corpus.parse(tmp_path, corpus.Options(), splits=["test"])


def test_marks_carriage_returns_and_odd_ids(tmp_path: Path) -> None:
    table = '\ufeffid,note,length\r\n-a.b,"two\r\nlines",3.5\r\n'
    (tmp_path / "Charades_v1_test.csv").write_bytes(table.encode())
    lines = "\ufeff-a.b 0 2##person #1 smiled ## twice.\r\n\r\n-a.b 2.5 9##x\r\nzz 0 1##y"
    (tmp_path / "charades_sta_test.txt").write_bytes(lines.encode())
    parsed = charades.parse(tmp_path, charades.Options(), splits=["test"])
    video, other = parsed.videos["test"]
    assert (video.video_id, video.duration, other.duration) == ("-a.b", 3.5, None)
    assert [query.text for query in video.queries] == ["person #1 smiled ## twice.", "x"]
    assert video.queries[1].end == 3.5 and parsed.repairs["no duration in the table"] == 1


@pytest.mark.parametrize("name", sorted(set(corpora.names()) - {"shapes"}))
def test_an_absent_file_says_where_it_comes_from(name: str, tmp_path: Path) -> None:
    corpus = corpora.load(name)
    with pytest.raises(MissingInput, match="from "):
        corpus.parse(tmp_path, corpus.Options())
    assert published.load(name) is not None and published.load("mine") is None
    assert all(published.load(name, subset) is not None for subset in corpus.SUBSETS)
