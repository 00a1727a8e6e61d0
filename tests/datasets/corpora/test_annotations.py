"""What others have written is read as it stands, or refused with its place."""

import math
from pathlib import Path
from typing import TypedDict

import pytest

from prvr.datasets.corpora._annotations import csv_rows, json_lines, length, lines_of, locate, number, placed
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.split import Query


class Row(TypedDict):
    text: str
    time: float


def _file(folder: Path, content: str | bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_keep_their_numbers_and_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = _file(tmp_path, "\ufeffone\r\n\n \ntwo\u2028still two\x0b\x85\nthree")
    assert list(lines_of(path)) == [
        (f"{path}:1", "one"),
        (f"{path}:4", "two\u2028still two\x0b\x85"),
        (f"{path}:5", "three"),
    ]


def test_json_lines_hold_what_their_schema_says(tmp_path: Path) -> None:
    path = _file(tmp_path, '\ufeff{"text": "a\u2028b", "time": 1, "more": []}\n\n{"text": "c", "time": 2.5}\n')
    assert [row for _, row in json_lines(path, Row)] == [{"text": "a\u2028b", "time": 1.0}, {"text": "c", "time": 2.5}]
    assert [where for where, _ in json_lines(path, Row)] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('\n{"text": "a", "time": "1"}', "file:2: time: .* number"),
        ('\n{"text": "a", "time": true}', "file:2: time: .* number"),
        ('{"text": 1, "time": 1}', "file:1: text: .* string"),
        ('{"text": "\\ud800", "time": 1}', "file:1: "),
        ('{"text": "a"}', "file:1: time: Field required"),
        ('{"text": "a", "ti', "file:1: "),
        (b'{"text": "caf\xe9", "time": 1}', "file: not UTF-8"),
    ],
)
def test_what_is_no_such_line_is_refused_with_its_number(content: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        list(json_lines(_file(tmp_path, content), Row))


def test_a_quoted_cell_may_hold_a_newline(tmp_path: Path) -> None:
    path = _file(tmp_path, '\ufeffid,text\r\na,"two\r\nlines, ""quoted"""\r\nb,x\r\n')
    assert list(csv_rows(path, ["id"])) == [
        (f"{path}:3", {"id": "a", "text": 'two\nlines, "quoted"'}),
        (f"{path}:4", {"id": "b", "text": "x"}),
    ]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("id,text\na,x\nb\n", "file:3: another number of cells"),
        ("id,text\na,x,y\n", "file:2: another number of cells"),
        ("text\nx\n", "no column id; it has text"),
        ("", "no column id"),
        ('id,text\na,"x\nb,y\nc,z\n', "file: after line 1: unexpected end of data"),
        ('id,text\na,"x"y\n', "file: after line 1: "),
        (f"id,text\na,{'x' * 200_000}\n", "file: after line 1: field larger"),
        (b"id,text\na,caf\xe9\n", "file: not UTF-8"),
    ],
)
def test_a_table_that_would_lose_rows_is_refused(content: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=what):
        list(csv_rows(_file(tmp_path, content), ["id"]))


def test_the_first_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    assert locate(tmp_path, "a", "b", source="somewhere") == tmp_path / "b"
    with pytest.raises(MissingInput, match="no a or c there; from somewhere"):
        locate(tmp_path, "a", "c", source="somewhere")


def test_what_is_refused_inside_gets_its_place() -> None:
    with pytest.raises(CorruptData, match="file:7: query '1' has no text"), placed("file:7"):
        Query("1", "")
    with pytest.raises(CorruptData, match=r"^other$"), placed("file:7"):
        raise CorruptData("other")
    assert not issubclass(CorruptData, ConfigurationError), "else the place would be named twice"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_no_video_lasts_so_long(seconds: float) -> None:
    assert length(0.01, "here") == 0.01
    with pytest.raises(CorruptData, match="here: a video of"):
        length(seconds, "here")


def test_numbers_from_text() -> None:
    assert number("-1.5", "here") == -1.5
    with pytest.raises(CorruptData, match="here: '1,5', where a number belongs"):
        number("1,5", "here")
