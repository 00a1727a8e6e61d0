"""NumPy's own files: one ``.npy`` or ``.npz``, or a folder of them.

An id is the file's stem; in an ``.npz`` of several arrays it is the array's name, in a folder of these ``<stem>/<name>``.
"""

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from prvr.datasets.foreign import Array, Contents, Entry
from prvr.manifests.errors import ConfigurationError, CorruptData

TITLE = "NumPy features"
SUFFIXES = (".npy", ".npz")
_LONGEST = 251
"""Bytes of a name, without the ending: what file systems take."""
_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise on damaged bytes, depending on where they are."""


def recognise(path: Path) -> bool:
    """A file of one of the two endings, or a folder that has one."""
    if path.is_dir():
        return next(_files(path), None) is not None
    return path.suffix in SUFFIXES


def places(root: Path) -> dict[str, Path]:
    """Folders of arrays in ``FeatureData``."""
    return {path.name: path for path in sorted((root / "FeatureData").glob("*")) if path.is_dir() and recognise(path)}


def place(root: Path, feature: str) -> Path:
    """A folder for each kind of features, a file for each video."""
    return root / "FeatureData" / feature


def words(root: Path, feature: str) -> Path:
    """A folder of files, one for each query."""
    return root / "TextData" / f"{feature}_query_feat"


@contextmanager
def read(path: Path) -> Iterator[Contents]:
    """Every array of every file; one that cannot be read is in ``wrong``."""
    entries: list[Entry] = []
    wrong: list[str] = []
    files = sorted(_files(path)) if path.is_dir() else [path]
    for file in files:
        if file.suffix == ".npz":
            entries += _archive(file, wrong, prefix=f"{file.stem}/" if path.is_dir() else "")
        else:
            entries += _single(file, wrong)
    yield Contents(tuple(entries), {"files": len(files)} if path.is_dir() else {}, tuple(wrong))


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """``<id>.npy`` for each id, float32.

    Raises:
        ConfigurationError: an id that no file can be named.
    """
    path.mkdir(parents=True)
    for id_, array in arrays:
        if "/" in id_ or "\0" in id_ or id_.startswith(".") or len(id_.encode()) > _LONGEST:
            raise ConfigurationError(f"{id_!r}: no file can have that name, or it would be hidden")
        if (path / f"{id_}.npy").exists():
            raise ConfigurationError(f"{id_!r}: this disk takes it for the name of another id's file")
        np.save(path / f"{id_}.npy", np.asarray(array, np.float32))


def _files(folder: Path) -> Iterator[Path]:
    return (
        path
        for path in folder.iterdir()
        if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _single(path: Path, wrong: list[str]) -> list[Entry]:
    try:
        with path.open("rb") as file:
            return [_entry(path.stem, file, path.stat().st_size, partial(_load, path))]
    except _ERRORS as error:
        wrong.append(f"{path.name}: {_reason(error)}")
        return []


def _archive(path: Path, wrong: list[str], *, prefix: str) -> list[Entry]:
    found = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            for member in members:
                name = member.filename.removesuffix(".npy")
                id_ = path.stem if len(members) == 1 else prefix + name
                try:
                    with archive.open(member) as file:
                        found.append(_entry(id_, file, member.file_size, partial(_load_member, path, member.filename)))
                except _ERRORS as error:
                    wrong.append(f"{path.name}, {name}: {_reason(error)}")
    except _ERRORS as error:
        wrong.append(f"{path.name}: cut short, or not an archive ({error})")
    return found


def _entry(id_: str, file: IO[bytes], size: int, load: Callable[[], Array]) -> Entry:
    """Read the header alone, and hold the file's size against it.

    Raises:
        ValueError: not an array, one that needs pickle, or one of another size.
    """
    if np.lib.format.read_magic(file) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects; it needs pickle, which executes what is in it, so it is refused")
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if size != expected:
        raise ValueError(f"{size:,} bytes, where an array {list(shape)} of {dtype} takes {expected:,}")
    return Entry(id_, shape, dtype, load)


def _load(path: Path) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _ERRORS as error:
        raise CorruptData(f"{path}: {error}") from None
    return array


def _load_member(path: Path, name: str) -> Array:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
    except _ERRORS as error:
        raise CorruptData(f"{path}, {name}: {error}") from None
    return array


def _reason(error: Exception) -> str:
    # Numpy says of a pickle only that the magic string is wrong; users know these files by what wrote them.
    if "magic string is not correct" in str(error):
        return "not a NumPy array (a pickle would need executing, so it is refused)"
    return str(error) or "empty file"
