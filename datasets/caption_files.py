"""Captions as people keep them: JSONL, CSV, and subtitle files (SRT, VTT).

A row of the first two has ``video_id`` and ``text``, and optionally ``start``, ``end``, ``duration`` (seconds), ``split``
(train, dev or test), ``query_id`` and ``type``. A CSV file names its columns in the first row; an empty cell is an absent one.
Other fields are ignored, and named.

Subtitle files lie in a folder, beside the videos or alone, one of each video; each subtitle is a caption with its start and end.
The file's stem is the video's id, as in prvr-extract, without a language: ``beach.en.srt`` is of ``beach``, unless a video
``beach.en.*`` is there.
"""

import html
import json
import logging
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from prvr.datasets.corpora._annotations import csv_rows, lines_of, text_of
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.videos import is_video, visible_files

_log = logging.getLogger(__name__)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
"""As players know it: en, deu, pt-BR, zh-Hans."""

type Subtitle = tuple[str, float, float]
"""Words, which may be none, and from when to when, in seconds."""


@dataclass(frozen=True, slots=True)
class Line:
    """One caption, as it was written down. Times in seconds."""

    video_id: str
    text: str
    start: float | None = None
    end: float | None = None
    duration: float | None = None
    split: str | None = None
    query_id: str | None = None
    type: str | None = None


@dataclass(frozen=True)
class Captions:
    """What captions files say, in their order; the files that were read; what was left out of them, by rule."""

    lines: tuple[Line, ...]
    sources: tuple[Path, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def read(path: Path) -> Captions:
    """Read a captions file, or a folder of subtitle files.

    Raises:
        MissingInput: absent; a folder without subtitles.
        ConfigurationError: what cannot be read, by file and line; two subtitle files of one video.
    """
    if not path.exists():
        raise MissingInput(f"{path}: no such captions file")
    with refused():
        if path.is_dir() or path.suffix.lower() in SUBTITLES:
            return _subtitled(path)
        if path.suffix.lower() == ".csv":
            return Captions(_checked(path, _csv(path), strict=False), (path,))
        return Captions(_checked(path, _jsonl(path), strict=True), (path,))


@contextmanager
def refused() -> Iterator[None]:
    """What is wrong in a file of one's own is a wrong input, not damage: raises ConfigurationError for a CorruptData."""
    try:
        yield
    except CorruptData as error:
        raise ConfigurationError(str(error)) from None


def _checked(path: Path, rows: Iterable[tuple[str, Any]], *, strict: bool) -> tuple[Line, ...]:
    """Rows, each with its place, held against what a line may be. ``strict``: words are not taken for numbers."""
    from pydantic import BaseModel, ConfigDict, Field, ValidationError

    class Row(BaseModel):
        model_config = ConfigDict(extra="allow")
        video_id: str = Field(min_length=1)
        text: str = Field(pattern=r"\S")
        start: float | None = None
        end: float | None = None
        duration: float | None = Field(default=None, gt=0, allow_inf_nan=False)
        split: Literal["train", "dev", "test"] | None = None
        query_id: str | None = Field(default=None, min_length=1)
        type: str | None = None

    lines, ignored = [], set[str]()
    for where, values in rows:
        try:
            row = Row.model_validate(values, strict=strict)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "line"
            raise ConfigurationError(f"{where}: {name}: {first['msg']}") from None
        ignored |= (row.model_extra or {}).keys()
        lines.append(Line(row.video_id, row.text, row.start, row.end, row.duration, row.split, row.query_id, row.type))
    if ignored:
        _log.info("%s: fields ignored: %s", path, ", ".join(sorted(ignored)))
    return tuple(lines)


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    for where, line in lines_of(path):
        try:
            yield where, json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{where}: not JSON ({error})") from None


def _csv(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    for where, row in csv_rows(path, ("video_id", "text")):
        yield where, {name: cell for name, cell in row.items() if cell.strip()}


def _subtitled(path: Path) -> Captions:
    around = visible_files(path) if path.is_dir() else list(path.parent.iterdir())
    videos = {file.stem for file in around if is_video(file)}
    files = [file for file in around if file.suffix.lower() in SUBTITLES] if path.is_dir() else [path]
    if not files:
        searched = "; videos without captions are searched as a --gallery" if videos else ""
        raise MissingInput(f"{path}: no {' or '.join(SUBTITLES)} file there{searched}")
    by_id: dict[str, Path] = {}
    for file in files:
        video_id = _id_of(file, videos)
        if by_id.setdefault(video_id, file) is not file:
            raise ConfigurationError(f"{by_id[video_id]} and {file} would both be of video {video_id!r}; keep one")
    if silent := sorted(videos - by_id.keys()):
        _log.warning("%s: %d videos have no subtitles and are left out, %s the first", path, len(silent), silent[0])
    found = [(video_id, *said) for video_id, file in by_id.items() for said in SUBTITLES[file.suffix.lower()](file)]
    lines = tuple(Line(video_id, text, start, end) for video_id, text, start, end in found if text.strip())
    wordless = len(found) - len(lines)
    return Captions(lines, tuple(files), {"subtitle without words, left out": wordless} if wordless else {})


def _id_of(file: Path, videos: Collection[str]) -> str:
    """Of which video a subtitle file is; ``videos``: the ids of those around it."""
    video_id, _, language = file.stem.rpartition(".")
    named = video_id in videos or _LANGUAGE.fullmatch(language)
    return video_id if file.stem not in videos and video_id and named else file.stem


def _srt(path: Path) -> list[Subtitle]:
    from pysubs2 import SSAFile
    from pysubs2.warnings import PossibleMissedSubtitleWarning

    text = text_of(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PossibleMissedSubtitleWarning)
        try:
            # It takes a last line of digits for the number of a next subtitle, so there is one.
            found = SSAFile.from_string(f"{text}\n\n0\n", format_="srt")
        except PossibleMissedSubtitleWarning as warning:
            raise ConfigurationError(f"{path}: {warning}: two times belong there") from None
    if text.strip() and not found:
        raise ConfigurationError(f"{path}: no subtitle in it, or not SRT")
    return [(one.plaintext, one.start / 1000, one.end / 1000) for one in found]


def _vtt(path: Path) -> list[Subtitle]:
    # pysubs2 reads VTT as SRT: names and comments of subtitles become words, and times within their words become subtitles.
    from webvtt import WebVTT
    from webvtt.errors import MalformedCaptionError, MalformedFileError
    from webvtt.models import Timestamp

    try:
        found = WebVTT.from_string(text_of(path), strict=True).captions
    except (MalformedCaptionError, MalformedFileError) as error:
        raise ConfigurationError(f"{path}: not WebVTT ({error})") from None

    def seconds(time: str) -> float:
        return Timestamp.from_string(time).in_milliseconds() / 1000

    return [(html.unescape(one.text), seconds(one.start), seconds(one.end)) for one in found]


SUBTITLES = {".srt": _srt, ".vtt": _vtt}
