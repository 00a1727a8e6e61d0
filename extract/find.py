"""From the words of a command to its sources: folders, files, globs, lists and URLs; or a split folder, for its captions."""

import glob
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from prvr.datasets.remote import file_system
from prvr.extract.sources import (
    FRAME_ENDINGS,
    Captions,
    FrameFolder,
    Source,
    Subtitles,
    VideoFile,
    VideoSource,
    VideoUrl,
)
from prvr.manifests import subtitles
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.split import Split
from prvr.manifests.videos import VIDEO_ENDINGS, visible_files

LIST_ENDINGS = frozenset({".txt", ".list", ".lst"})


@dataclass(frozen=True)
class Found:
    """Sources of one ``stream`` (``video``, ``text`` or ``subtitles``) in a fixed order, how many files were passed over, and
    the dataset where they are texts."""

    sources: tuple[Source, ...]
    ignored: int
    stream: str = "video"
    dataset: str | None = None


def find(
    arguments: Sequence[str], *, id_from: str = "stem", frame_rate: float | None = None, subtitled: bool = False
) -> Found:
    """Everything that the arguments name. With ``frame_rate``, each folder that holds pictures is a video; ``subtitled``, of a
    split folder the subtitles are taken, not the captions.

    Raises:
        MissingInput: an argument that names nothing, or no video at all.
        ConfigurationError: two videos with one id; captions and videos together.
    """
    splits = [Path(argument) for argument in arguments if (Path(argument) / "split.json").is_file()]
    if splits:
        if len(arguments) > 1:
            raise ConfigurationError("one split folder at a time, and no videos beside it")
        split = Split.read(splits[0])
        if subtitled:
            said = subtitles.read(splits[0])
            return Found(tuple(Subtitles(*of_video) for of_video in said.items()), 0, "subtitles", split.dataset)
        videos = (video for found in split.videos.values() for video in found if video.queries)
        # A video may stand in two splits; its captions are encoded once.
        unique = {tuple(query.query_id for query in video.queries): video for video in videos}
        return Found(tuple(Captions(video) for video in unique.values()), 0, "text", split.dataset)
    if subtitled:
        raise ConfigurationError("--subtitles takes those of a split folder; name one")
    places = _Places(frame_rate)
    for argument in arguments:
        places.add(argument)
    if not places.videos:
        pictures = (
            f", {places.pictures} of them pictures: --frame-rate takes folders of frames" if places.pictures else ""
        )
        raise MissingInput(f"{', '.join(arguments)}: no video there ({places.ignored} other files{pictures})")
    by_id: dict[str, VideoSource] = {}
    for place in places.videos.values():
        source = place.source(id_from)
        if source.id in by_id:
            both = f"{by_id[source.id].name} and {source.name}"
            raise ConfigurationError(f"{both} would both be {source.id!r}; use --id-from path")
        by_id[source.id] = source
    return Found(tuple(source for _, source in sorted(by_id.items())), places.ignored)


@dataclass(frozen=True)
class _Place:
    """Where a video is, and the folder that its id counts from."""

    where: str
    root: str
    kind: type[VideoSource]
    rate: float | None = None

    def source(self, id_from: str) -> VideoSource:
        path, root = PurePosixPath(self.where), PurePosixPath(self.root)
        whole = path.relative_to(root) if id_from == "path" and self.root and path.is_relative_to(root) else path
        if self.kind is FrameFolder:
            assert self.rate is not None
            return FrameFolder(path.name if id_from == "stem" else whole.as_posix(), Path(self.where), self.rate)
        id_ = path.stem if id_from == "stem" else whole.with_suffix("").as_posix()
        return VideoUrl(id_, self.where) if self.kind is VideoUrl else VideoFile(id_, Path(self.where))


class _Places:
    """What the arguments name, each place once."""

    def __init__(self, frame_rate: float | None) -> None:
        self.frame_rate = frame_rate
        self.videos: dict[str, _Place] = {}
        self.ignored = self.pictures = 0

    def add(self, argument: str) -> None:
        path = Path(argument)
        if argument == "-":
            self._list(sys.stdin, "standard input")
        elif "://" in argument:
            self._url(argument)
        elif path.is_dir():
            for file in visible_files(path):
                self._file(file, path)
        elif path.is_file() and path.suffix.lower() in LIST_ENDINGS:
            with path.open(encoding="utf-8") as lines:
                self._list(lines, argument)
        elif path.is_file():
            self._file(path, path.parent)
        else:
            # Path.glob takes no absolute pattern.
            matches = sorted(Path(match) for match in glob.glob(argument, recursive=True))  # noqa: PTH207
            if not matches:
                raise MissingInput(f"{argument}: no such file or folder")
            for match in matches:
                if match.is_file():
                    self._file(match, match.parent)
                elif self.frame_rate is not None:
                    self.add(str(match))

    def _file(self, file: Path, root: Path) -> None:
        ending = file.suffix.lower()
        if ending in VIDEO_ENDINGS:
            self._keep(_Place(str(file), str(root), VideoFile))
        elif ending in FRAME_ENDINGS and self.frame_rate is not None:
            self._keep(_Place(str(file.parent), str(root), FrameFolder, self.frame_rate))
        else:
            self.ignored += 1
            self.pictures += ending in FRAME_ENDINGS

    def _list(self, lines: Iterable[str], name: str) -> None:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            entry = line.rstrip("\r\n")
            if "://" in entry:
                self._url(entry)
            elif Path(entry).is_dir() and self.frame_rate is not None:
                self.add(entry)
            elif Path(entry).is_file():
                self._file(Path(entry), Path())
            else:
                raise MissingInput(f"{name}, line {number}: {entry}: no such file")

    def _url(self, url: str) -> None:
        system, path = file_system(url)
        try:
            folder = not glob.has_magic(path) and system.isdir(path)
            # A glob without magic gives what it names, if it is there.
            found = system.find(path) if folder else system.glob(path)
        except (OSError, ValueError, ImportError) as error:
            raise MissingInput(f"{url}: {error}") from None
        if not found:
            raise MissingInput(f"{url}: nothing there")
        root = system.unstrip_protocol(path) if folder else ""
        for one in sorted(found):
            name = system.unstrip_protocol(one)
            if PurePosixPath(name).suffix.lower() in VIDEO_ENDINGS:
                self._keep(_Place(name, root, VideoUrl))
            else:
                self.ignored += 1

    def _keep(self, place: _Place) -> None:
        self.videos.setdefault(place.where, place)
