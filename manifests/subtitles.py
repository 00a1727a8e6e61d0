"""Subtitles of videos, beside their split: ``<folder>/subtitles.jsonl``, one line a video."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.files import digest_of, write_text

FILE = "subtitles.jsonl"


@dataclass(frozen=True, slots=True)
class Subtitle:
    """What is said from ``start`` to ``end``, in seconds; raises ConfigurationError where nothing is, or at no time."""

    text: str
    start: float
    end: float

    def __post_init__(self) -> None:
        if not self.text or not 0 <= self.start <= self.end:
            raise ConfigurationError(f"subtitle {self.text!r} from {self.start} to {self.end} s")


def fingerprint(lines: Sequence[Subtitle]) -> str:
    """Changes when a text does: what the features of a video's subtitles are kept under."""
    return digest_of([line.text for line in lines])


def write(folder: Path, subtitles: Mapping[str, Sequence[Subtitle]]) -> None:
    """Write the file, whole or not at all."""
    lines = (
        {"video_id": video_id, "subtitles": [asdict(line) for line in lines]} for video_id, lines in subtitles.items()
    )
    write_text(folder / FILE, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read(folder: Path) -> dict[str, tuple[Subtitle, ...]]:
    """The subtitles of each video of a split folder.

    Raises:
        MissingInput: the folder has none.
        CorruptData: a line that cannot be read, by its number.
    """
    path = folder / FILE
    if not path.is_file():
        raise MissingInput(f"{path}: no subtitles there; prvr-build-split writes them where the annotations have some")
    found: dict[str, tuple[Subtitle, ...]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if text:
            try:
                line = json.loads(text)
                found[line["video_id"]] = tuple(Subtitle(**one) for one in line["subtitles"])
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptData(f"{path}:{number}: not the subtitles of a video ({error})") from None
    return found
