"""What is extracted from: videos on disk or behind a URL, folders of frames, captions."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from prvr.datasets.remote import file_system
from prvr.manifests.files import sha256_of
from prvr.manifests.split import Video
from prvr.manifests.subtitles import Subtitle, fingerprint

FRAME_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


@dataclass(frozen=True)
class VideoFile:
    """A video to look at; ``id`` names its features."""

    id: str
    path: Path

    @property
    def name(self) -> str:
        """As messages and the ledger have it."""
        return str(self.path)

    def fingerprint(self) -> str:
        """Size and SHA-256 of the content: another content is another source. Raises OSError."""
        return f"{self.path.stat().st_size}:{sha256_of(self.path)}"

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """The path to decode, for as long as the context lasts."""
        yield self.path


@dataclass(frozen=True)
class FrameFolder:
    """A video as a folder of pictures, ``rate`` a second, in order of their names."""

    id: str
    path: Path
    rate: float

    @property
    def name(self) -> str:
        """As messages and the ledger have it."""
        return str(self.path)

    def fingerprint(self) -> str:
        """Rate, and SHA-256 of the names and contents. Raises OSError."""
        digest = hashlib.sha256()
        for path in sorted(path for path in self.path.iterdir() if path.suffix.lower() in FRAME_ENDINGS):
            digest.update(f"{path.name} {sha256_of(path)}\n".encode())
        return f"{self.rate:g}/s:{digest.hexdigest()}"

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """The folder."""
        yield self.path


@dataclass(frozen=True)
class VideoUrl:
    """A video behind a URL that fsspec reads; copied to the temporary folder while it is decoded."""

    id: str
    url: str

    @property
    def name(self) -> str:
        """As messages and the ledger have it."""
        return self.url

    def fingerprint(self) -> str:
        """Size and what the server says of the version; of a server that says nothing, size and SHA-256 of the content.

        Raises:
            OSError: it cannot be reached.
        """
        system, path = file_system(self.url)
        known = system.info(path)
        for key in ("ETag", "etag", "md5", "md5Hash", "checksum", "mtime", "LastModified", "last_modified", "created"):
            if known.get(key) is not None:
                return f"{known.get('size')}:{key}={known[key]}"
        with self.fetched() as copy:
            return f"{known.get('size')}:{sha256_of(copy)}"

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """A copy, removed when the context ends."""
        with tempfile.TemporaryDirectory(prefix="prvr-") as folder:
            copy = Path(folder) / f"video{PurePosixPath(self.url).suffix}"
            system, path = file_system(self.url)
            system.get_file(path, str(copy))
            yield copy


type VideoSource = VideoFile | FrameFolder | VideoUrl


@dataclass(frozen=True)
class Captions:
    """The captions of one video, encoded together: one unit of work, whose numbers do not depend on what else is asked for."""

    video: Video

    @property
    def id(self) -> str:
        """For messages."""
        return self.video.video_id

    @property
    def name(self) -> str:
        """As messages and the ledger have it."""
        return self.video.video_id

    @property
    def texts(self) -> tuple[str, ...]:
        """What is encoded."""
        return tuple(query.text for query in self.video.queries)

    def marks(self) -> dict[str, str]:
        """The ids that features are kept under, and the fingerprint of each."""
        return {query.query_id: query.fingerprint() for query in self.video.queries}


@dataclass(frozen=True)
class Subtitles:
    """The subtitles of one video, encoded together and kept under its id."""

    id: str
    lines: tuple[Subtitle, ...]

    @property
    def name(self) -> str:
        """As messages and the ledger have it."""
        return self.id

    @property
    def texts(self) -> tuple[str, ...]:
        """What is encoded."""
        return tuple(line.text for line in self.lines)

    def marks(self) -> dict[str, str]:
        """As of Captions."""
        return {self.id: fingerprint(self.lines)}


type Source = VideoSource | Captions | Subtitles
