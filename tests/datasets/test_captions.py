"""One's own captions."""

from pathlib import Path

import pytest

from prvr.datasets.build import make_split
from prvr.datasets.captions import parse
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
