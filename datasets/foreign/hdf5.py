"""HDF5 files: a data set for each video or caption, or for each frame (``<video>_<number>``, as DL-DKD's extractor writes CLIP).

Where every data set lies in a group of its own and all have the same name (ActivityNet's C3D), the group is the id.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from prvr.datasets.foreign import Array, Contents, Entry, some
from prvr.manifests.errors import ConfigurationError, CorruptData

TITLE = "HDF5 features"
SUFFIXES = (".hdf5", ".h5", ".hdf")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FRAME = re.compile(r"(.+)_(\d+)")
AMDNET = "new_clip_vit_32"
_AMDNET = re.compile(rf"{AMDNET}_(.+)_vid_features\.hdf5")
_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises on damaged bytes, depending on where they are."""


@dataclass(frozen=True, slots=True)
class _DataSet:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    whole: bool


def recognise(path: Path) -> bool:
    """A file with an ending of HDF5, or with its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix in SUFFIXES or file.read(len(_SIGNATURE)) == _SIGNATURE


def places(root: Path) -> dict[str, Path]:
    """``FeatureData/<feature>/feature.hdf5``, as DreamPRVR and HLFormer have it, and AMDNet's file."""
    found = {path.parent.name: path for path in sorted((root / "FeatureData").glob("*/feature.hdf5"))}
    amdnet = place(root, AMDNET)
    return {**found, AMDNET: amdnet} if amdnet.is_file() else found


def place(root: Path, feature: str) -> Path:
    """A file for each kind of features."""
    if feature == AMDNET:
        return root / "FeatureData" / f"{AMDNET}_{root.name}_vid_features.hdf5"
    return root / "FeatureData" / feature / "feature.hdf5"


def words(root: Path, feature: str) -> Path:
    """Of AMDNet's, one vector a caption; else RoBERTa's words."""
    kind = "clip_ViT_B_32" if feature == AMDNET else "roberta"
    return root / "TextData" / f"{kind}_{root.name}_query_feat.hdf5"


@contextmanager
def read(path: Path) -> Iterator[Contents]:
    """One entry a video or caption.

    Raises:
        CorruptData: not HDF5, or cut short.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise CorruptData(f"{path}: cut short, or not HDF5 ({error})") from None
    with file:
        try:
            found = _data_sets(file)
        except _ERRORS as error:
            raise CorruptData(f"{path}: {error}") from None
        wrong = []
        if unwritten := [one.name for one in found if not one.whole]:
            wrong.append(f"{len(unwritten):,} data sets were never written whole, and read as zeros: {some(unwritten)}")
        frames = _frames(found)
        facts: dict[str, Any] = {"data sets": len(found)}
        if frames:
            facts["frames"] = "a data set each, <video>_<number>"
            entries = [_entry_of_frames(file, video, numbered) for video, numbered in frames.items()]
            gaps = [video for video, numbered in frames.items() if sorted(numbered) != list(range(len(numbered)))]
            if gaps:
                wrong.append(f"{len(gaps):,} videos lack frames between 0 and their last: {some(gaps)}")
        else:
            entries = [
                Entry(id_, one.shape, one.dtype, partial(_load, file, one.name))
                for id_, one in zip(_ids([one.name for one in found]), found, strict=True)
            ]
        pair = _pair(path, [entry.id for entry in entries])
        yield Contents(tuple(entries), {**facts, **pair.facts}, (*wrong, *pair.wrong), pair.notes)


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """A float32 data set for each id; in AMDNet's file of sentences a vector.

    Raises:
        ConfigurationError: an id that HDF5 would take for a path; several rows where a vector belongs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = path.name.startswith("clip_ViT_B_32")
    with h5py.File(path, "w") as file:
        for id_, array in arrays:
            if "/" in id_ or id_ == "." or "\0" in id_:
                raise ConfigurationError(f"{id_!r}: HDF5 takes it for a path; no data set can have that name")
            if flat and len(array) != 1:
                raise ConfigurationError(
                    f"{id_!r}: {len(array)} rows, where AMDNet reads one vector a caption; name other features with --feature"
                )
            file.create_dataset(id_, data=np.asarray(array[0] if flat else array, np.float32))


def _data_sets(file: Any) -> list[_DataSet]:
    """Every data set, by name. None stays open: a file of frames has a million."""
    found: list[_DataSet] = []

    def visit(name: str | bytes, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            # h5py gives bytes where a name is not UTF-8.
            text = name if isinstance(name, str) else name.decode(errors="surrogateescape")
            found.append(_DataSet(text, tuple(node.shape or ()), node.dtype, _whole(node)))

    file.visititems(visit)
    return found


def _whole(dataset: Any) -> bool:
    """Whether all of it was written: HDF5 reads what was not as zeros, and says nothing."""
    if not dataset.size or dataset.is_virtual or dataset.external:
        return True  # Its values lie elsewhere, or there are none.
    if dataset.chunks:
        chunks = math.prod(-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))
        return bool(dataset.id.get_num_chunks() == chunks)
    return bool(dataset.id.get_storage_size() > 0)


def _ids(names: Sequence[str]) -> list[str]:
    leaves = {name.rpartition("/")[2] for name in names}
    return [name.rpartition("/")[0] or name for name in names] if len(leaves) == 1 < len(names) else list(names)


def _frames(found: Sequence[_DataSet]) -> dict[str, dict[int, _DataSet]]:
    """Data sets by video and frame number; nothing where they are not frames: videos' own names end in numbers too."""
    grouped: dict[str, dict[int, _DataSet]] = {}
    for one in found:
        match = _FRAME.fullmatch(one.name)
        if not match or not one.shape or math.prod(one.shape) != one.shape[-1]:
            return {}
        grouped.setdefault(match[1], {})[int(match[2])] = one
    counted = sum(0 in numbered and len(numbered) > 1 for numbered in grouped.values())
    return grouped if counted > len(grouped) / 2 else {}


def _entry_of_frames(file: Any, video: str, numbered: Mapping[int, _DataSet]) -> Entry:
    frames = [numbered[number] for number in sorted(numbered)]
    widths = {frame.shape[-1] for frame in frames}
    shape = (len(frames), *(widths if len(widths) == 1 else ()))
    return Entry(video, shape, frames[0].dtype, partial(_load_frames, file, [frame.name for frame in frames]))


def _load(file: Any, name: str) -> Array:
    try:
        return np.asarray(file[name.encode(errors="surrogateescape")][()])
    except _ERRORS as error:
        raise CorruptData(f"{file.filename}: {name}: {error}") from None


def _load_frames(file: Any, names: Sequence[str]) -> Array:
    return np.stack([_load(file, name).reshape(-1) for name in names])


def _pair(path: Path, videos: Sequence[str]) -> Contents:
    """AMDNet reads CLIP features as a pair: this file, and the captions' in ``../TextData``."""
    match = _AMDNET.fullmatch(path.name)
    captions = path.parent.parent / "TextData" / f"clip_ViT_B_32_{match[1]}_query_feat.hdf5" if match else None
    if captions is None or not captions.is_file():
        return Contents(())
    try:
        with h5py.File(captions, "r") as file:
            owners = [str(name).split("#")[0] for name in file]
    except _ERRORS as error:
        return Contents((), {"captions": captions.name}, (f"{captions.name}: {error}",))
    strange = sorted(set(owners) - set(videos))
    notes = (f"{captions.name} has captions of {len(strange):,} videos not here: {some(strange)}",) if strange else ()
    about = {"in": captions.name, "count": len(owners), "of videos": len(set(owners))}
    return Contents((), {"captions": about}, notes=notes)
