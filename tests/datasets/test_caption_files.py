"""Captions in CSV and in subtitle files; JSONL is in ``test_captions``."""

import logging
from pathlib import Path

import pytest

from prvr.datasets.caption_files import Line, read
from prvr.manifests.errors import ConfigurationError, MissingInput

VTT = """WEBVTT - a title
Kind: captions

STYLE
::cue { color: red }

NOTE made by hand

intro
00:01.000 --> 00:02.500 align:start position:0%
<v Ann>Hello &amp; <i>welcome</i></v>

silence
00:00:03.000 --> 00:00:04.000

third
00:00:05.000 --> 00:00:07.250
Now<00:00:05.500><c> we</c><00:00:06.000><c> talk</c>
of 2 < 3
"""
SRT = (
    "1\r\n00:00:01,000 --> 00:00:02,500\r\n{\\an8}<i>A dog</i> runs\r\ninto the sea\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000\r\n\r\n"
    "3\r\n01:00:04,000 --> 01:00:05,001\r\n<font color='red'>Olé</font> & more\r\n42\r\n\r\n"
)


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_csv(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = _file(
        tmp_path / "c.CSV",
        "\ufeffvideo_id,worker,text,start,end,duration,split,query_id,type\r\n"
        '-a_b.1,7,"a dog, a\r\n""big"" one",1,2.5,60,train,q1,v\r\n'
        "\r\n"
        " b ,8, edges ,,, ,test,,\r\n",
    )
    assert read(path).lines == (
        Line("-a_b.1", 'a dog, a\n"big" one', 1.0, 2.5, 60.0, "train", "q1", "v"),
        Line(" b ", " edges ", split="test"),
    )
    assert read(path).sources == (path,) and "fields ignored: worker" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("video_id,text,start\na,x,1\nb,y,soon\n", r"c\.csv:3: start: .*number"),
        ('video_id,text,start\na,x,"1,5"\n', r"c\.csv:2: start: .*number"),
        ("video_id,text,duration\na,x,inf\n", r"c\.csv:2: duration"),
        ("video_id,text,duration\na,x,0\n", r"c\.csv:2: duration"),
        ("video_id,text\na,x, and y\n", r"c\.csv:2: another number of cells"),
        ("video_id,text,split\na,x\n", r"c\.csv:2: another number of cells"),
        ('video_id,text\na,"x\ny"\n\n,z\n', r"c\.csv:5: video_id"),
        ("video_id,text\na, \n", r"c\.csv:2: text"),
        ("video_id,text,split\na,x,val\n", r"c\.csv:2: split"),
        ('video_id,text\na,"never closed\n', r"c\.csv.* unexpected end of data"),
        ("video_id;text\na;x\n", "no column video_id, text; it has video_id;text"),
        ("", "no column video_id, text; it has "),
    ],
)
def test_bad_csv_is_named_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(_file(tmp_path / "c.csv", text))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "srt", "vtt"])
def test_what_is_not_utf8_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"c.{ending}"
    path.write_bytes("café".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=rf"c\.{ending}: not UTF-8"):
        read(path)


def test_subtitles(tmp_path: Path) -> None:
    srt = _file(tmp_path / "a" / "beach.srt", "\ufeff" + SRT)
    vtt = _file(tmp_path / "b" / "talk.VTT", VTT)
    captions = read(tmp_path)
    assert captions.lines == (
        Line("beach", "A dog runs\ninto the sea", 1.0, 2.5),
        Line("beach", "Olé & more\n42", 3604.0, 3605.001),
        Line("talk", "Hello & welcome", 1.0, 2.5),
        Line("talk", "Now we talk\nof 2 < 3", 5.0, 7.25),
    )
    assert captions.left_out == {"subtitle without words, left out": 2}
    assert captions.sources == (srt, vtt)
    assert read(srt).lines == captions.lines[:2]


@pytest.mark.parametrize(
    ("file", "videos", "video_id"),
    [
        ("beach.srt", [], "beach"),
        ("beach.en.srt", [], "beach"),
        ("beach.zh-Hans.srt", ["beach.mp4"], "beach"),
        ("beach.forced.srt", ["beach.mp4"], "beach"),
        ("beach.en.srt", ["beach.mp4", "beach.en.MKV"], "beach.en"),
        ("-4wsuPCjDBc_5_15.srt", [], "-4wsuPCjDBc_5_15"),
        ("a.b.srt", [], "a.b"),
        ("v1.25.srt", ["other.mp4"], "v1.25"),
        ("en.srt", [], "en"),
        (".en.srt", [], ".en"),
    ],
)
def test_of_which_video_a_subtitle_file_is(tmp_path: Path, file: str, videos: list[str], video_id: str) -> None:
    for video in videos:
        (tmp_path / video).touch()
    assert {line.video_id for line in read(_file(tmp_path / file, SRT)).lines} == {video_id}


@pytest.mark.parametrize("other", ["sub/beach.srt", "beach.vtt", "beach.de.srt"])
def test_two_subtitle_files_of_one_video(tmp_path: Path, other: str) -> None:
    _file(tmp_path / "beach.srt", SRT)
    _file(tmp_path / other, VTT if other.endswith("vtt") else SRT)
    with pytest.raises(ConfigurationError, match="'beach'; keep one") as caught:
        read(tmp_path)
    assert str(tmp_path / "beach.srt") in str(caught.value) and str(tmp_path / other) in str(caught.value)


def test_videos_without_subtitles_are_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("beach.mp4", "silent.mp4", "mute.mov"):
        (tmp_path / name).touch()
    with pytest.raises(MissingInput, match=r"no \.srt or \.vtt file there.*--gallery"):
        read(tmp_path)
    _file(tmp_path / "beach.srt", SRT)
    _file(tmp_path / ".trash" / "beach.vtt", VTT)
    assert {line.video_id for line in read(tmp_path).lines} == {"beach"}
    assert "2 videos have no subtitles and are left out, mute the first" in caplog.text


def test_folders_without_anything(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"no \.srt or \.vtt file there$"):
        read(tmp_path)
    with pytest.raises(MissingInput, match="no such captions file"):
        read(tmp_path / "absent.srt")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.srt", "Chapter one\n", "no subtitle in it, or not SRT"),
        ("a.srt", SRT.replace("00:00:02,500", "00:00:02,x"), "near line 2: two times belong there"),
        ("a.vtt", "00:01.000 --> 00:02.000\nx\n", "not WebVTT"),
        ("a.vtt", VTT.replace("00:02.500", "00:0x.500"), "not WebVTT .*intro"),
        ("a.vtt", VTT.replace("\n\nthird", "\nthird"), "not WebVTT"),
        ("a.vtt", "", "not WebVTT"),
    ],
)
def test_bad_subtitles_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        read(_file(tmp_path / name, text))
    assert str(tmp_path / name) in str(caught.value)


def test_nothing_said_is_no_error(tmp_path: Path) -> None:
    """As speech recognition writes it for a silent video."""
    _file(tmp_path / "a.srt", "\n")
    _file(tmp_path / "b.vtt", "WEBVTT\n")
    assert read(tmp_path).lines == ()
