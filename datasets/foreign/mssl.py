"""MS-SL's BigFile folder, which GMMFormer and others read too: ``feature.bin`` (float32 rows), ``shape.txt`` (``rows width``),
``id.txt`` (a name for each row, between white space), ``video2frames.txt`` (a Python dict: video to its rows' names).

Source: the reader in the released code of MS-SL (Dong et al., ACM MM 2022). It evaluates ``video2frames.txt``; here it is parsed.
"""

import ast
import re
import string
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np

from prvr.datasets.foreign import Array, Contents, Entry, hdf5, some
from prvr.manifests.errors import ConfigurationError, CorruptData

TITLE = "MS-SL BigFile"
FILES = ("feature.bin", "id.txt", "shape.txt", "video2frames.txt")
_DTYPE = np.dtype("<f4")
_PLAIN = string.punctuation.replace("%", "")
"""With letters and digits, what stands for itself in a row's name."""

_STRING = r"""[uU]?(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_NAME = re.compile(_STRING)
# Possessive, so that a damaged file of many megabytes fails at once.
_PAIR = re.compile(rf"\s*+({_STRING})\s*+:\s*+[\[(]\s*+((?:{_STRING}\s*+(?:,\s*+)?+)*+)[\])]\s*+(,|(?=\}}))")


def recognise(path: Path) -> bool:
    """A folder with two of the four files at least: one that is missing is a finding."""
    return path.is_dir() and sum((path / name).is_file() for name in FILES) >= 2


def places(root: Path) -> dict[str, Path]:
    """Folders of ``FeatureData`` that hold a BigFile."""
    return {path.name: path for path in sorted((root / "FeatureData").glob("*")) if recognise(path)}


def place(root: Path, feature: str) -> Path:
    """``FeatureData/<feature>``."""
    return root / "FeatureData" / feature


def words(root: Path, feature: str) -> Path:
    """One file for all features: ``TextData/roberta_<collection>_query_feat.hdf5``."""
    return root / "TextData" / f"roberta_{root.name}_query_feat.hdf5"


@contextmanager
def read(path: Path) -> Iterator[Contents]:
    """One entry a video, its rows in the order of ``video2frames.txt``.

    Raises:
        CorruptData: a file is absent or cannot be parsed.
    """
    # The names of all rows, a million in TVR, are let go before anything is read.
    yield _contents(path)


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """The four files; words, whose path has an ending, as HDF5. A row is named ``<video>_<number>``, and what is not ASCII, or is
    white space, is ``%XX`` there: MS-SL reads ``id.txt`` as Latin-1, and cuts it at white space.

    Raises:
        ConfigurationError: no videos, or two widths.
    """
    if path.suffix in hdf5.SUFFIXES:
        return hdf5.write(path, arrays)
    path.mkdir(parents=True)
    rows, width = 0, 0
    with (
        (path / "feature.bin").open("wb") as binary,
        (path / "id.txt").open("w", encoding="ascii") as names,
        (path / "video2frames.txt").open("w", encoding="ascii") as frames,
    ):
        for video, array in arrays:
            if width not in (0, array.shape[1]):
                raise ConfigurationError(f"{video}: {array.shape[1]} wide, where the videos before are {width}")
            own = [f"{quote(video, safe=_PLAIN)}_{number}" for number in range(len(array))]
            frames.write(f"{', ' if rows else '{'}{video!a}: {own!r}")
            names.write("".join(f"{name} " for name in own))
            binary.write(np.ascontiguousarray(array, _DTYPE).tobytes())
            rows, width = rows + len(array), array.shape[1]
        frames.write("}")
    if not rows:
        raise ConfigurationError(f"{path}: no videos to write")
    (path / "shape.txt").write_text(f"{rows} {width}", encoding="ascii")


def frames_of_videos(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The pairs of ``video2frames.txt``, one after the other: a Python literal that comes from strangers, so it is matched,
    never evaluated, and a hundred megabytes of it make no syntax tree.

    Raises:
        CorruptData: anything but a dict of strings to lists of strings.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    position, more = 1, True
    while more and (pair := _PAIR.match(text, position)):
        yield _string(pair[1]), [_string(name) for name in _NAME.findall(pair[2])]
        position, more = pair.end(), pair[3] == ","
    if not text.startswith("{") or text[position:].strip() != "}":
        near = text[position : position + 40] or "the end of the file"
        raise CorruptData(f"{path}: not a dict of lists of names, at character {position:,}: {near!r}")


def _contents(path: Path) -> Contents:
    absent = [name for name in FILES if not (path / name).is_file()]
    if absent:
        raise CorruptData(f"{path}: no {', '.join(absent)}")
    rows, width = _shape(path / "shape.txt")
    names = (path / "id.txt").read_text(encoding="utf-8", errors="surrogateescape").split()
    places = {name: row for row, name in enumerate(names)}
    wrong = _sizes(path / "feature.bin", rows, width, names, len(places))
    stored = (path / "feature.bin").stat().st_size // (_DTYPE.itemsize * width)

    entries: dict[str, Entry] = {}
    nameless: list[str] = []
    beyond: list[str] = []
    unordered: list[str] = []
    used: set[int] = set()
    for video, frames in frames_of_videos(path / "video2frames.txt"):
        found = [places[frame] for frame in frames if frame in places]
        if len(found) < len(frames):
            nameless += [frame for frame in frames if frame not in places]
        if found and max(found) >= stored:
            beyond.append(video)
            found = [row for row in found if row < stored]
        numbers = [int(end[1]) for frame in frames if (end := re.search(r"_(\d+)$", frame))]
        if numbers != sorted(numbers):
            unordered.append(video)
        if video in entries:
            wrong.append(f"video2frames.txt: {video} stands in it twice")
        index = np.array(found, np.int64)
        entries[video] = Entry(video, (len(found), width), _DTYPE, partial(_rows, path, (stored, width), index))
        used.update(found)
    if nameless:
        wrong.append(f"{len(nameless):,} frames of video2frames.txt are not in id.txt: {some(nameless)}")
    if beyond:
        wrong.append(f"{len(beyond):,} videos have rows past the end of feature.bin: {some(beyond)}")
    notes = []
    if unordered:
        notes.append(
            f"the frames of {len(unordered):,} videos are not in the order of their numbers: {some(unordered)}"
        )
    if len(used) < min(stored, len(names)):
        notes.append(f"{min(stored, len(names)) - len(used):,} rows belong to no video")
    return Contents(tuple(entries.values()), {"feature.bin": {"rows": stored}}, tuple(wrong), tuple(notes))


def _string(token: str) -> str:
    if "\\" not in token:
        return token.lstrip("uU")[1:-1]
    with warnings.catch_warnings(action="ignore"):
        try:
            return str(ast.literal_eval(token))
        except (SyntaxError, ValueError):
            raise CorruptData(f"video2frames.txt: not a string: {token}") from None


def _shape(path: Path) -> tuple[int, int]:
    words = path.read_text(encoding="utf-8", errors="replace").split()
    if len(words) < 2 or not all(word.isdecimal() for word in words[:2]) or not int(words[1]):
        raise CorruptData(f"{path}: {' '.join(words[:4])!r}, where two numbers belong: rows and width")
    return int(words[0]), int(words[1])


def _sizes(binary: Path, rows: int, width: int, names: list[str], distinct: int) -> list[str]:
    wrong = []
    size, expected = binary.stat().st_size, rows * width * _DTYPE.itemsize
    if size != expected:
        doubled = "; twice as many, so perhaps float64" if size == 2 * expected else ""
        wrong.append(
            f"feature.bin: {size:,} bytes, where {rows:,} rows of {width:,} float32 take {expected:,}{doubled}"
        )
    if len(names) != rows:
        wrong.append(f"id.txt: {len(names):,} names, where shape.txt says {rows:,} rows")
    if distinct != len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        wrong.append(f"id.txt: {len(twice):,} names stand in it more than once: {some(twice)}")
    return wrong


def _rows(path: Path, shape: tuple[int, int], index: Array) -> Array:
    if not len(index):
        return np.zeros((0, shape[1]), _DTYPE)
    try:
        return np.asarray(np.memmap(path / "feature.bin", _DTYPE, "r", shape=shape)[index])
    except (OSError, ValueError) as error:
        raise CorruptData(f"{path / 'feature.bin'}: {error}") from None
