"""The feature store: a Zarr v3 group of immutable parts, one writer each (DESIGN §4).

``<name>.zarr/zarr.json`` holds the spec; ``<name>.zarr/parts/<digest>/`` holds ``frames [rows, E]``, ``offsets [n+1]`` and
``times [rows]`` of n videos (or captions), their ids, fingerprints and the sha256 of every file in its attributes.

Commit protocol: a part is written to a directory beside the store, flushed, and renamed into ``parts/``. A reader sees
committed parts alone. Delivery is at least once: an id in two parts is legal, and the part committed last is read.
"""

import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.files import aside_of, digest_of, read_json, sha256_of, sweep, sync

FORMAT = "prvr-features/1"
_CHUNK_BYTES = 512 * 1024

type Array = NDArray[Any]


@dataclass(frozen=True)
class FeatureSpec:
    """What made the features of a store. All but ``versions`` is its identity: two identities never share a store.

    Args:
        stream: ``video`` or ``text``.
        backbone, recipe, recipe_digest: what computed them, and how.
        weights: as the user named them; ``random:SEED`` where they are random. ``weights_sha256``: of the loaded bytes.
        dim, dtype: of one row.
        compute_threads, batch_size: threads a network ran on, and rows that it computed together; other counts may change the
            last bits. ``precision``: that it computed in. Several networks are joined by plus signs.
        versions: library name to version.
        settings: of the recipe, as ``recipe_digest`` covers them.
    """

    stream: str
    backbone: str
    recipe: str
    recipe_digest: str
    weights: str
    weights_sha256: str
    dim: int
    dtype: str
    compute_threads: int
    versions: Mapping[str, str]
    batch_size: str = "any"
    precision: str = "float32"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """The fields that may not be mixed in one store. A weights' name may differ where the bytes are the same."""
        return {key: value for key, value in asdict(self).items() if key not in ("versions", "weights", "settings")}


@dataclass(frozen=True)
class Features:
    """One id's rows: ``frames`` [T, E], ``times`` [T] (seconds; word positions for text), and its source's fingerprint."""

    id: str
    fingerprint: str
    frames: Array
    times: Array

    def __post_init__(self) -> None:
        if self.frames.ndim != 2 or self.times.shape != self.frames.shape[:1] or not len(self.frames):
            raise ValueError(
                f"{self.id}: frames {self.frames.shape} and times {self.times.shape} are not [T, E] and [T]"
            )


@dataclass(frozen=True)
class _Rows:
    part: Path
    start: int
    stop: int
    fingerprint: str


class FeatureStore:
    """Features by id. ``FeatureStore.open(path)`` reads; ``FeatureStore.create(path, spec)`` also commits."""

    def __init__(self, path: Path, spec: FeatureSpec) -> None:
        self.path = path
        self.spec = spec
        self._rows: dict[str, _Rows] = {}
        self._arrays: dict[tuple[Path, str], Any] = {}
        self.refresh()

    @classmethod
    def open(cls, path: Path | str) -> "FeatureStore":
        """Open an existing store.

        Raises:
            MissingInput: nothing there.
            CorruptData: something else is there.
        """
        path = Path(path)
        if not (path / "zarr.json").is_file():
            raise MissingInput(f"{path}: no feature store there; make one with prvr-extract")
        attributes = read_json(path / "zarr.json").get("attributes", {})
        if attributes.get("format") != FORMAT:
            raise CorruptData(f"{path}: a Zarr group, but not of the format {FORMAT}")
        try:
            return cls(path, FeatureSpec(**attributes["spec"]))
        except TypeError as error:
            raise CorruptData(f"{path}: its spec is not one of {FORMAT} ({error})") from None

    @classmethod
    def create(cls, path: Path, spec: FeatureSpec) -> "FeatureStore":
        """Open for writing; made if absent. Racing makers are harmless: one wins.

        Raises:
            ConfigurationError: the store was made with another recipe.
        """
        if not path.exists():
            aside = aside_of(path)
            attributes = {"format": FORMAT, "spec": asdict(spec)}
            zarr.create_group(store=aside, attributes=attributes).create_group("parts")
            _rename_unless_there(aside, path)
        sweep(path)
        store = cls.open(path)
        ours, theirs = spec.identity(), store.spec.identity()
        if ours != theirs:
            key = next(key for key in ours if ours[key] != theirs[key])
            raise ConfigurationError(
                f"{path}: made with {key} {theirs[key]}, not {ours[key]}; use --name for another store, or --overwrite"
            )
        return store

    @property
    def ids(self) -> tuple[str, ...]:
        """Every committed id, in order of commit."""
        return tuple(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._rows

    def __getitem__(self, id_: str) -> Array:
        """Rows of one id, [T, E]; raises KeyError, or CorruptData where a checksum fails."""
        rows = self._rows[id_]
        return self._read(rows, "frames")

    def times(self, id_: str) -> Array:
        """Times of one id's rows, [T] float64."""
        return self._read(self._rows[id_], "times")

    def fingerprint(self, id_: str) -> str:
        """Fingerprint of the source that the rows of ``id_`` were made from."""
        return self._rows[id_].fingerprint

    def missing(self, ids: Iterable[str]) -> list[str]:
        """Those of ``ids`` that the store does not have."""
        return [id_ for id_ in ids if id_ not in self._rows]

    def refresh(self) -> None:
        """See what other writers have committed since."""
        parts = [part for part in (self.path / "parts").iterdir() if (part / "zarr.json").is_file()]
        attributes = {part: read_json(part / "zarr.json")["attributes"] for part in parts}
        self._rows = {}
        for part in sorted(parts, key=lambda part: (attributes[part]["committed"], part.name)):
            self._add(part, attributes[part])

    def _add(self, part: Path, attributes: Mapping[str, Any]) -> None:
        offsets = attributes["offsets"]
        for row, (id_, fingerprint) in enumerate(zip(attributes["ids"], attributes["fingerprints"], strict=True)):
            self._rows[id_] = _Rows(part, offsets[row], offsets[row + 1], fingerprint)

    def commit(self, features: Sequence[Features]) -> None:
        """Make one part of these ids; when it returns, they survive a kill."""
        if not features:
            return
        for one in features:
            if one.frames.shape[1] != self.spec.dim:
                raise ValueError(f"{one.id}: {one.frames.shape[1]} wide, the store is {self.spec.dim}")
        names = [(one.id, one.fingerprint) for one in features]
        part = self.path / "parts" / digest_of([self.spec.identity(), names])[:32]
        aside = aside_of(self.path)
        _write_part(aside, features, self.spec.dtype)
        _rename_unless_there(aside, part)
        self._add(part, read_json(part / "zarr.json")["attributes"])

    def compact(self, bytes_per_part: int = 256 << 20) -> None:
        """Merge small parts by the same protocol: the merged part is committed before the small ones are removed."""
        groups: list[list[str]] = [[]]
        size = 0
        for id_, rows in self._rows.items():
            weight = (rows.stop - rows.start) * self.spec.dim * np.dtype(self.spec.dtype).itemsize
            if groups[-1] and size + weight > bytes_per_part:
                groups.append([])
                size = 0
            groups[-1].append(id_)
            size += weight
        old = {part for part in (self.path / "parts").iterdir() if part.is_dir()}
        for group in groups:
            self.commit([Features(id_, self.fingerprint(id_), self[id_], self.times(id_)) for id_ in group])
        kept = {rows.part for rows in self._rows.values()}
        for part in old - kept:
            # A reader must never see half of a part: it leaves parts/ by a rename before it is deleted.
            aside = aside_of(self.path)
            part.rename(aside)
            shutil.rmtree(aside)
        self.refresh()

    def verify(self) -> list[str]:
        """Hash every file of every part; one line for each that is not as committed."""
        problems = []
        for part in sorted(path for path in (self.path / "parts").iterdir() if path.is_dir()):
            if not (part / "zarr.json").is_file():
                problems.append(f"{part}: no zarr.json")
                continue
            for name, digest in read_json(part / "zarr.json")["attributes"]["files"].items():
                if not (part / name).is_file():
                    problems.append(f"{part / name}: absent")
                elif sha256_of(part / name) != digest:
                    problems.append(f"{part / name}: changed since it was committed")
        return problems

    def _read(self, rows: _Rows, name: str) -> Array:
        try:
            # A chunk that is gone is an error, not zeros.
            with zarr.config.set({"array.read_missing_chunks": False}):
                array = self._arrays.get((rows.part, name))
                if array is None:
                    array = self._arrays[rows.part, name] = zarr.open_array(store=rows.part / name, mode="r")
                return np.asarray(array[rows.start : rows.stop])
        except (ValueError, KeyError, FileNotFoundError, zarr.errors.BaseZarrError) as error:
            raise CorruptData(f"{rows.part / name}: {error}") from error


def _write_part(folder: Path, features: Sequence[Features], dtype: str) -> None:
    frames = np.concatenate([one.frames for one in features]).astype(dtype, copy=False)
    offsets = np.concatenate([[0], np.cumsum([len(one.frames) for one in features])]).astype(np.int64)
    per_chunk = min(len(frames), max(1, _CHUNK_BYTES // (frames.shape[1] * frames.itemsize)))
    shard = math.ceil(len(frames) / per_chunk) * per_chunk
    checksum = [Crc32cCodec()]
    # Without write_empty_chunks a chunk of zeros would be left out, and could not be told from a lost one.
    with zarr.config.set({"array.write_empty_chunks": True}):
        array = zarr.create_array(
            store=folder / "frames",
            shape=frames.shape,
            dtype=frames.dtype,
            chunks=(per_chunk, frames.shape[1]),
            shards=(shard, frames.shape[1]),
            compressors=checksum,
        )
        array[:] = frames
        times = np.concatenate([one.times for one in features]).astype(np.float64)
        zarr.create_array(store=folder / "offsets", data=offsets, chunks=offsets.shape, compressors=checksum)
        zarr.create_array(store=folder / "times", data=times, chunks=times.shape, compressors=checksum)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    attributes = {
        "ids": [one.id for one in features],
        "fingerprints": [one.fingerprint for one in features],
        "offsets": offsets.tolist(),
        "files": {str(path.relative_to(folder)): sha256_of(path) for path in files},
        "committed": time.time_ns(),
    }
    zarr.create_group(store=folder, attributes=attributes)
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def _rename_unless_there(aside: Path, target: Path) -> None:
    try:
        aside.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(aside)
    sync(target.parent)
