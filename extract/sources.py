"""What to extract from: folders of video, files, globs, lists; or a split folder, for its captions."""

import glob
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.files import sha256_of
from prvr.manifests.split import Split, Video

VIDEO_ENDINGS = frozenset(
    ".3gp .asf .avi .flv .gif .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv".split()  # noqa: SIM905
)
LIST_ENDINGS = frozenset({".txt", ".list", ".lst"})


@dataclass(frozen=True)
class VideoFile:
    """A video to look at; ``id`` names its features."""

    id: str
    path: Path

    def fingerprint(self) -> str:
        """Size and SHA-256 of the content: another content is another source. Raises OSError."""
        return f"{self.path.stat().st_size}:{sha256_of(self.path)}"


@dataclass(frozen=True)
class Captions:
    """The captions of one video, encoded together: one unit of work, whose numbers do not depend on what else is asked for."""

    video: Video

    @property
    def id(self) -> str:
        """For messages."""
        return self.video.video_id


@dataclass(frozen=True)
class Found:
    """Sources in a fixed order, how many files were passed over, and the dataset where they are captions."""

    sources: tuple[VideoFile, ...] | tuple[Captions, ...]
    ignored: int
    dataset: str | None

    @property
    def stream(self) -> str:
        """``video`` or ``text``."""
        return "text" if self.dataset is not None else "video"


def find(arguments: Sequence[str], *, id_from: str = "stem") -> Found:
    """Everything that the arguments name.

    Raises:
        MissingInput: an argument that names nothing, or no video at all.
        ConfigurationError: two videos with one id; captions and videos together.
    """
    splits = [Path(argument) for argument in arguments if (Path(argument) / "split.json").is_file()]
    if splits:
        if len(arguments) > 1:
            raise ConfigurationError("one split folder at a time, and no videos beside it")
        split = Split.read(splits[0])
        videos = (video for found in split.videos.values() for video in found if video.queries)
        # A video may stand in two splits; its captions are encoded once.
        unique = {tuple(query.query_id for query in video.queries): video for video in videos}
        return Found(tuple(Captions(video) for video in unique.values()), 0, split.dataset)
    files: dict[Path, str] = {}
    ignored = 0
    for argument in arguments:
        for path, root in _files(argument):
            if path.suffix.lower() in VIDEO_ENDINGS:
                files.setdefault(path, _id(path, root, id_from))
            else:
                ignored += 1
    if not files:
        raise MissingInput(f"{', '.join(arguments)}: no video there ({ignored} other files)")
    by_id: dict[str, Path] = {}
    for path, id_ in files.items():
        if id_ in by_id:
            raise ConfigurationError(f"{by_id[id_]} and {path} would both be {id_!r}; use --id-from path")
        by_id[id_] = path
    return Found(tuple(VideoFile(id_, path) for id_, path in sorted(by_id.items())), ignored, None)


def _files(argument: str) -> Iterator[tuple[Path, Path]]:
    """Pairs of a file and the folder that its id counts from."""
    path = Path(argument)
    if argument == "-":
        yield from _listed(sys.stdin, "standard input")
    elif path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        yield from ((file, path) for file in found if not _hidden(file, path))
    elif path.is_file() and path.suffix.lower() in LIST_ENDINGS:
        with path.open(encoding="utf-8") as lines:
            yield from _listed(lines, argument)
    elif path.is_file():
        yield path, path.parent
    else:
        # Path.glob takes no absolute pattern.
        matches = sorted(Path(match) for match in glob.glob(argument, recursive=True))  # noqa: PTH207
        if not matches:
            raise MissingInput(f"{argument}: no such file or folder")
        yield from ((match, match.parent) for match in matches if match.is_file())


def _listed(lines: Iterable[str], name: str) -> Iterator[tuple[Path, Path]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            path = Path(line.rstrip("\r\n"))
            if not path.is_file():
                raise MissingInput(f"{name}, line {number}: {path}: no such file")
            yield path, Path()


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _id(path: Path, root: Path, id_from: str) -> str:
    if id_from == "stem":
        return path.stem
    return (path.relative_to(root) if path.is_relative_to(root) else path).with_suffix("").as_posix()
