"""One's own data: captions in a JSONL file, for any folder of videos.

A line: ``{"video_id": …, "text": …}``, and optionally ``start``, ``end``, ``duration`` (seconds), ``split``
(train, dev or test), ``query_id``, ``type``. Other fields are ignored, and named.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from prvr.datasets.corpora import Parsed
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.repair import repaired
from prvr.manifests.split import Query, Video

TEST_PERCENT = 10
_log = logging.getLogger(__name__)


def parse(path: Path) -> Parsed:
    """Read a captions file. Where no line names a split, videos are divided by a hash of their id, 90 % train, 10 % test.

    Raises:
        MissingInput: absent or empty.
        ConfigurationError: a line that cannot be read, by its number; a video in two splits.
    """
    from pydantic import BaseModel, ConfigDict, Field, ValidationError

    class Line(BaseModel):
        model_config = ConfigDict(extra="allow", strict=True)
        video_id: str = Field(min_length=1)
        text: str = Field(pattern=r"\S")
        start: float | None = None
        end: float | None = None
        duration: float | None = Field(default=None, gt=0)
        split: Literal["train", "dev", "test"] | None = None
        query_id: str | None = Field(default=None, min_length=1)
        type: str | None = None

    if not path.is_file():
        raise MissingInput(f"{path}: no such captions file")
    lines: list[Line] = []
    for number, text in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not text.strip():
            continue
        try:
            lines.append(Line.model_validate(json.loads(text)))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "line"
            raise ConfigurationError(f"{path}:{number}: {field}: {first['msg']}") from None
        except ValueError as error:
            raise ConfigurationError(f"{path}:{number}: not JSON ({error})") from None
    if not lines:
        raise MissingInput(f"{path}: no captions in it")
    ignored = sorted({name for line in lines for name in line.model_extra or {}})
    if ignored:
        _log.info("%s: fields ignored: %s", path, ", ".join(ignored))
    if any(line.split for line in lines) and not all(line.split for line in lines):
        raise ConfigurationError(f"{path}: some lines name a split and some do not")
    divided = not lines[0].split
    if divided:
        _log.info(
            "%s: no line names a split; %d %% of the videos, by a hash of their id, become test", path, TEST_PERCENT
        )

    repairs: Counter[str] = Counter()
    videos: dict[str, list[Line]] = {}
    for line in lines:
        videos.setdefault(line.video_id, []).append(line)
    tested = _tested(videos) if divided else set()
    by_split: dict[str, list[Video]] = {}
    for video_id, own in videos.items():
        splits = {line.split for line in own}
        if len(splits) > 1:
            raise ConfigurationError(f"{path}: video {video_id!r} stands in two splits")
        duration = max((line.duration for line in own if line.duration), default=None)
        queries = tuple(
            repaired(
                Query(line.query_id or f"{video_id}#enc#{number}", line.text, line.start, line.end, line.type),
                duration,
                repairs,
            )
            for number, line in enumerate(own)
        )
        split = own[0].split or ("test" if video_id in tested else "train")
        by_split.setdefault(split, []).append(Video(video_id, duration, queries))
    return Parsed({name: tuple(found) for name, found in by_split.items()}, (path,), repairs)


def _tested(video_ids: Iterable[str]) -> set[str]:
    """The tested tenth: of two videos and more at least one, and at most half."""
    by_hash = sorted(video_ids, key=hash_percent)
    tenth = sum(hash_percent(video_id) < TEST_PERCENT for video_id in by_hash)
    return set(by_hash[: min(max(tenth, 1), len(by_hash) // 2)])


def hash_percent(video_id: str) -> float:
    """A number in [0, 100) that depends on the id alone: how videos are divided where nobody else has done it."""
    return int.from_bytes(hashlib.sha256(video_id.encode()).digest()[:8], "big") / 2**64 * 100
