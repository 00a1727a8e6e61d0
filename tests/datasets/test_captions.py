"""One's own data: captions of any kind, and galleries without."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prvr.datasets.build import make_split
from prvr.datasets.captions import gallery, parse
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.manifests.errors import ConfigurationError, MissingInput


def _file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "captions.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_lines_become_videos_by_split(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        '{"video_id": "a", "text": "a dog  runs", "start": 1, "end": 2.5, "split": "train"}',
        "",
        '{"video_id": "b", "text": "a cat", "split": "test", "query_id": "own"}',
        '{"video_id": "a", "text": "it sits", "split": "train"}',
    )
    parsed = parse(path)
    (first,), (second,) = parsed.videos["train"], parsed.videos["test"]
    assert [(q.query_id, q.text, q.start) for q in first.queries] == [
        ("a#enc#0", "a dog runs", 1.0),
        ("a#enc#1", "it sits", None),
    ]
    assert second.queries[0].query_id == "own"
    assert parsed.repairs == {"white space in text": 1}


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"video_id": "a", "text": "x"}')
    assert parse(path).videos["train"][0].video_id == "a"


@pytest.mark.parametrize(("videos", "tests"), [(1, 0), (2, 1), (5, 1), (400, 40)])
def test_without_splits_a_tenth_is_tested(tmp_path: Path, videos: int, tests: int) -> None:
    path = _file(tmp_path, *(f'{{"video_id": "v{n}", "text": "x"}}' for n in range(videos)))
    found = parse(path).videos
    assert abs(len(found.get("test", ())) - tests) <= tests // 2
    assert len(found["train"]) + len(found.get("test", ())) == videos


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"video_id": "a"}', "captions.jsonl:2: text"),
        ('{"text": "a"}', "captions.jsonl:2: video_id"),
        ('{"video_id": "a", "text": "  "}', "captions.jsonl:2: text"),
        ('{"video_id": 7, "text": "x"}', "captions.jsonl:2: video_id"),
        ('{"video_id": "a", "text": "x", "split": "val"}', "captions.jsonl:2: split"),
        ('{"video_id": "a", "text": "x", "start": "soon"}', "captions.jsonl:2: start"),
        ('["a"]', "captions.jsonl:2: line"),
        ("{", "captions.jsonl:2: not JSON"),
        ('{"video_id": "b", "text": "x", "split": "train"}', "some lines name a split"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(_file(tmp_path, '{"video_id": "z", "text": "x"}', line))


def test_a_video_in_two_splits(tmp_path: Path) -> None:
    lines = (f'{{"video_id": "a", "text": "x", "split": "{split}"}}' for split in ("train", "test"))
    with pytest.raises(ConfigurationError, match="two splits"):
        parse(_file(tmp_path, *lines))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no such"):
        parse(tmp_path / "absent.jsonl")
    with pytest.raises(MissingInput, match="no captions"):
        parse(_file(tmp_path))


def test_heldout_takes_some_training_videos_and_no_others(tmp_path: Path) -> None:
    lines = (
        f'{{"video_id": "v{n}", "text": "x", "split": "{"test" if n % 5 == 0 else "train"}"}}' for n in range(1000)
    )
    parsed = parse(_file(tmp_path, *lines))
    split = make_split("own", parsed, protocol="heldout")
    ids = {name: {video.video_id for video in videos} for name, videos in split.videos.items()}
    assert ids["train"] | ids["dev"] == {video.video_id for video in parsed.videos["train"]}
    assert not ids["train"] & ids["dev"] and 20 <= len(ids["dev"]) <= 60
    assert ids["test"] == {video.video_id for video in parsed.videos["test"]}


def test_a_csv_file_is_as_good_as_jsonl(tmp_path: Path) -> None:
    lines = _file(
        tmp_path,
        '{"video_id": "a", "text": "a dog, a cat", "start": 1, "end": 2.5, "duration": 9, "split": "train"}',
        '{"video_id": "b", "text": "it sits", "split": "test", "query_id": "7"}',
        '{"video_id": "a", "text": "late", "start": 8, "end": 9.5, "split": "train"}',
    )
    table = tmp_path / "captions.csv"
    table.write_text(
        "query_id,video_id,text,start,end,duration,split\n"
        ',a,"a dog,\na cat",1,2.5,9,train\n7,b,it sits,,,,test\n,a,late,8,9.5,,train\n',
        encoding="utf-8",
    )
    assert parse(table).videos == parse(lines).videos
    assert parse(table).repairs == {"white space in text": 1, "end after the end of the video": 1}


def test_subtitle_files_become_a_split(tmp_path: Path) -> None:
    text = (
        "1\n00:00:01,000 --> 00:00:02,500\n- so\n- it is\n\n"
        "2\n00:00:09,000 --> 00:00:08,000\nno\n\n"
        "3\n00:01:00,000 --> 00:01:01,000\n\n"
    )
    for name in "abcdefgh":
        (tmp_path / f"{name}.en.srt").write_text(text, encoding="utf-8")
    parsed = parse(tmp_path)
    videos = [video for found in parsed.videos.values() for video in found]
    assert {video.video_id for video in videos} == set("abcdefgh") and set(parsed.videos) == {"train", "test"}
    assert [(q.query_id, q.text, q.start, q.end) for q in parsed.videos["train"][0].queries] == [
        (f"{parsed.videos['train'][0].video_id}#enc#0", "- so - it is", 1.0, 2.5),
        (f"{parsed.videos['train'][0].video_id}#enc#1", "no", None, None),
    ]
    assert parsed.repairs == {
        "subtitle without words, left out": 8,
        "white space in text": 8,
        "end before start": 8,
    }
    assert set(make_split("own", parsed).sources) == {f"{name}.en.srt" for name in "abcdefgh"}


def _ids(path: Path) -> list[str]:
    parsed = gallery(path)
    assert list(parsed.videos) == ["test"] and not any(video.queries for video in parsed.videos["test"])
    return [video.video_id for video in parsed.videos["test"]]


def test_a_gallery_of_files(tmp_path: Path) -> None:
    for name in ("b.mp4", "sub/a.b.MKV", "notes.txt", ".hidden/c.mp4", ".d.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert _ids(tmp_path) == ["b", "a.b"]
    assert make_split("own", gallery(tmp_path)).counts() == {"test": {"videos": 2, "queries": 0}}
    (tmp_path / "sub" / "b.webm").touch()
    with pytest.raises(ConfigurationError, match=r"b\.mp4 and .*sub/b\.webm would both be 'b'"):
        gallery(tmp_path)


def test_a_gallery_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("\ufeff-4wsuPCjDBc_5_15\r\n\r\n vidéo 1 \n", encoding="utf-8")
    assert _ids(path) == ["-4wsuPCjDBc_5_15", "vidéo 1"]
    assert gallery(path).sources == (path,)


def test_a_gallery_of_a_store(tmp_path: Path, spec: Callable[..., FeatureSpec]) -> None:
    store = FeatureStore.create(tmp_path / "v.zarr", spec("video", 4))
    with pytest.raises(MissingInput, match="no video in it"):
        gallery(tmp_path / "v.zarr")
    for name in ("b", "a", "c"):
        store.commit([Features(name, "made", np.ones((2, 4), np.float32), np.arange(2.0))])
    assert _ids(tmp_path / "v.zarr") == ["a", "b", "c"]
    FeatureStore.create(tmp_path / "t.zarr", spec("text", 4))
    with pytest.raises(ConfigurationError, match="features of text"):
        gallery(tmp_path / "t.zarr")


def test_a_gallery_of_nothing(tmp_path: Path) -> None:
    for name, message in (("absent", "no such folder"), ("v.zarr", "no feature store"), (".", "no video in it")):
        with pytest.raises(MissingInput, match=message):
            gallery(tmp_path / name)
    (tmp_path / "film.mp4").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        gallery(tmp_path / "film.mp4")
    (tmp_path / "ids.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(MissingInput, match="no video in it"):
        gallery(tmp_path / "ids.txt")
