"""Where shards lie: a folder on disk, or behind any URL that fsspec reads, whose shards come through a cache on disk.

The cache is content-addressed: ``<cache>/<sha256>.tar``. A shard is written aside, hashed as it comes, and renamed, so that a
cut download never enters; of processes that want the same shard one fetches it, and the others wait.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prvr.manifests.errors import CorruptData, MissingInput, PrvrError
from prvr.manifests.files import read_json, written_aside

if TYPE_CHECKING:
    from prvr.datasets.index import Shard

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Folder:
    """Shards on disk."""

    path: Path
    remedy = "build the shards again"

    def __str__(self) -> str:
        return str(self.path)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def json(self, name: str) -> Any:
        """A JSON file; raises MissingInput, CorruptData."""
        return read_json(self.path / name)

    def check(self, shard: "Shard") -> None:
        """Hold a shard's size against the index; raises CorruptData."""
        path = self.path / shard.name
        if not path.is_file():
            raise CorruptData(f"{path}: named in the index, but absent")
        if path.stat().st_size != shard.size:
            raise CorruptData(f"{path}: {path.stat().st_size} bytes, the index says {shard.size}")

    def local(self, shard: "Shard") -> Path:
        """A shard's file; raises CorruptData where its size is not what the index says."""
        self.check(shard)
        return self.path / shard.name


class Url:
    """Shards behind a URL.

    Raises:
        MissingInput: the package for its protocol is not installed.
    """

    remedy = "remove that file of the cache, and it is fetched again"

    def __init__(self, url: str, cache: Path | None = None) -> None:
        self.url = url.rstrip("/")
        self.cache = cache or default_cache()
        self._system, self._root = file_system(self.url)

    def __str__(self) -> str:
        return self.url

    def has(self, name: str) -> bool:
        """Whether there is a file of this name; raises PrvrError where the connection fails."""
        with self._told(name):
            return bool(self._system.exists(self._path(name)))

    def json(self, name: str) -> Any:
        """A JSON file; raises MissingInput, CorruptData, and PrvrError of the connection."""
        try:
            with self._told(name):
                return json.loads(self._system.cat_file(self._path(name)))
        except FileNotFoundError:
            raise MissingInput(f"{self.url}/{name}: no such file") from None
        except ValueError as error:
            raise CorruptData(f"{self.url}/{name}: not JSON ({error})") from None

    def check(self, shard: "Shard") -> None:
        """Nothing: a question a shard is dear, and what is fetched is hashed."""

    def local(self, shard: "Shard") -> Path:
        """A shard's file in the cache, where only what the index says enters; raises CorruptData, and PrvrError as above."""
        path = self.cache / f"{shard.sha256}.tar"
        if not _whole(path, shard):
            with _alone(path):
                if not _whole(path, shard):
                    self._fetch(shard, path)
        return path

    def _fetch(self, shard: "Shard", path: Path) -> None:
        digest, size = hashlib.sha256(), 0
        try:
            with written_aside(path) as aside, aside.open("wb") as file:
                with self._told(shard.name), self._system.open(self._path(shard.name), "rb") as source:
                    while block := source.read(_BLOCK):
                        digest.update(block)
                        size += len(block)
                        file.write(block)
                if digest.hexdigest() != shard.sha256:
                    raise CorruptData(
                        f"{self.url}/{shard.name}: {size} bytes came that are not the {shard.size} of the index; "
                        "run again, and if they stay the same, upload the shards again"
                    )
        except FileNotFoundError:
            raise CorruptData(f"{self.url}/{shard.name}: named in the index, but absent") from None

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """What goes wrong on the way, of whatever protocol, says at which file. That it is not there is for the caller."""
        try:
            yield
        except (FileNotFoundError, ValueError):
            raise
        except Exception as error:
            raise PrvrError(f"{self.url}/{name}: could not be read ({error!r}); run again") from error


type Place = Folder | Url


def place_of(folder: Path | str, cache: Path | None = None) -> Place:
    """A folder, or a URL: what has ``://``. ``cache``: for shards of URLs, ``PRVR_CACHE/shards`` or ``~/.cache/prvr/shards``."""
    return Url(folder, cache) if isinstance(folder, str) and "://" in folder else Folder(Path(folder))


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it; MissingInput where the package for that protocol is not installed."""
    from fsspec.core import url_to_fs

    try:
        found: tuple[Any, str] = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise MissingInput(f"{url}: {error}") from None
    return found


def default_cache() -> Path:
    """Folder of fetched shards."""
    return Path(os.environ.get("PRVR_CACHE", "~/.cache/prvr")).expanduser() / "shards"


def _whole(path: Path, shard: "Shard") -> bool:
    return path.is_file() and path.stat().st_size == shard.size


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the lock of one that was killed is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
