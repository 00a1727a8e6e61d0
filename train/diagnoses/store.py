"""Feature stores: every file hashed, the parts held against each other and against what their names promise."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from prvr.datasets.foreign import some
from prvr.datasets.ledger import Ledger
from prvr.datasets.store import FeatureStore
from prvr.manifests.errors import CorruptData
from prvr.manifests.files import digest_of, read_json
from prvr.manifests.split import Split
from prvr.train.diagnoses import Diagnosis, Finding, Look, evenly, left_behind, notes, spread, wrong
from prvr.train.diagnoses._rows import Census

_FULL_PART = 256 << 20
_MANY_PARTS = 20

KIND = "feature store"

type Part = tuple[Path, Mapping[str, Any]]


def recognise(path: Path) -> bool:
    """A folder that is a Zarr group, or is called one."""
    return path.is_dir() and (path.suffix == ".zarr" or (path / "zarr.json").is_file())


def diagnose(path: Path, look: Look) -> Diagnosis:
    """Open, hash, and look into an even sample; raises PrvrError where it does not open at all."""
    store = FeatureStore.open(path)
    committed = [part for part in sorted((path / "parts").iterdir()) if (part / "zarr.json").is_file()]
    parts = [(part, read_json(part / "zarr.json")["attributes"]) for part in committed]
    # What the reader takes of an id is the part committed last.
    lengths = {
        id_: stop - start
        for _, values in sorted(parts, key=lambda part: (part[1]["committed"], part[0].name))
        for id_, start, stop in zip(values["ids"], values["offsets"], values["offsets"][1:], strict=False)
    }
    spec = store.spec
    facts: dict[str, Any] = {
        "made by": made_by(asdict(spec)),
        "captions" if spec.stream == "text" else "videos": len(store),
        "rows": {"all": sum(lengths.values()), **(spread(lengths.values()) if lengths else {})},
        "width": spec.dim,
        "dtype": spec.dtype,
        "parts": len(parts),
    }
    problems = store.verify()
    if read_json(path / "parts" / "zarr.json").get("node_type") != "group":
        problems.append(
            f"{path / 'parts' / 'zarr.json'}: not that of a group, so that plain Zarr does not find the parts"
        )
    findings = wrong(problems)
    if not problems:
        findings += wrong(_promises(store, parts))
        findings += _in_several(parts, look.sample)
    values, found = _values(store, look.sample)
    findings += found + random_weights([asdict(spec)]) + _beside(store)
    size = sum(lengths.values()) * spec.dim * np.dtype(spec.dtype).itemsize
    if len(parts) > max(_MANY_PARTS, 4 * math.ceil(size / _FULL_PART)):
        findings += notes([f"{len(parts):,} parts are many for {size >> 20:,} MiB: FeatureStore.compact() merges them"])
    if not len(store):
        findings += notes(["nothing is in it"])
    if look.against:
        findings += _missing(store, look.against)
    return Diagnosis(path, KIND, facts | values, findings)


def made_by(spec: Mapping[str, Any]) -> dict[str, str]:
    """A spec in one line."""
    return {
        "backbone": spec["backbone"],
        "recipe": spec["recipe"],
        "weights": spec["weights"],
        "sha256": spec["weights_sha256"][:12],
    }


def random_weights(specs: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Features of random weights are for tests."""
    made = dict.fromkeys(f"{spec['backbone']} ({spec['weights']})" for spec in specs if "random:" in spec["weights"])
    return notes([f"RANDOM weights: {', '.join(made)}; nothing but tests should use these features"] if made else [])


def _values(store: FeatureStore, at_most: int) -> tuple[dict[str, Any], list[Finding]]:
    """Statistics of a sample's rows and times."""
    census, rates = Census(), []
    unreadable, bent, shaped = [], [], []
    sample = evenly(store.ids, at_most)
    for id_ in sample:
        try:
            rows, times = store[id_], store.times(id_)
        except CorruptData:
            unreadable.append(id_)
            continue
        if rows.shape[1:] != (store.spec.dim,) or str(rows.dtype) != store.spec.dtype:
            shaped.append(id_)
            continue
        census.add(id_, rows)
        if not np.isfinite(times).all() or (np.diff(times) <= 0).any():
            bent.append(id_)
        elif len(times) > 1:
            rates.append((len(times) - 1) / float(times[-1] - times[0]))
    facts: dict[str, Any] = {}
    if len(sample) < len(store):
        facts["looked into"] = f"{len(sample):,} of {len(store):,}, evenly chosen"
    if store.spec.stream != "text":
        facts["rows a second"] = spread(rates) if rates else "unknown"
    findings = wrong(
        f"{what}, in {len(ids):,} of {len(sample):,}: {some(ids)}"
        for what, ids in (
            ("rows that cannot be read", unreadable),
            ("rows not as the spec says", shaped),
            ("times that do not rise", bent),
        )
        if ids
    )
    return facts | census.facts(), findings + census.findings()


def _promises(store: FeatureStore, parts: Sequence[Part]) -> Iterator[str]:
    """A part's attributes are hashed nowhere, but its name is made of its ids, and its offsets stand in an array too."""
    raw = read_json(store.path / "zarr.json")["attributes"]["spec"]
    as_stored = {key: value for key, value in raw.items() if key not in ("versions", "weights")}
    for part, values in parts:
        names = list(zip(values["ids"], values["fingerprints"], strict=True))
        if part.name not in {digest_of([identity, names])[:32] for identity in (store.spec.identity(), as_stored)}:
            yield f"{part / 'zarr.json'}: not the spec, ids and fingerprints that the part was committed with"
        if not np.array_equal(_array(part, "offsets", 0, None), values["offsets"]):
            yield f"{part / 'zarr.json'}: its offsets are not those of the array"


def _in_several(parts: Sequence[Part], at_most: int) -> list[Finding]:
    """Ids that several parts hold: legal where contents are equal, or where the source changed."""
    places: dict[str, list[tuple[Part, int]]] = {}
    for part in parts:
        for row, id_ in enumerate(part[1]["ids"]):
            places.setdefault(id_, []).append((part, row))
    several = {id_: found for id_, found in places.items() if len(found) > 1}
    unequal, other_source = [], []
    for id_ in evenly(list(several), at_most):
        by_source: dict[str, list[tuple[Part, int]]] = {}
        for part, row in several[id_]:
            by_source.setdefault(part[1]["fingerprints"][row], []).append((part, row))
        if len(by_source) > 1:
            other_source.append(id_)
        if any(not _equal(found) for found in by_source.values()):
            unequal.append(id_)
    findings = notes([f"{len(several):,} ids stand in several parts; the last counts"] if several else [])
    if other_source:
        findings += notes([f"{len(other_source):,} of them had another source before: {some(other_source)}"])
    if unequal:
        findings += wrong([f"{len(unequal):,} ids have unequal rows of one source in several parts: {some(unequal)}"])
    return findings


def _equal(found: Sequence[tuple[Part, int]]) -> bool:
    """Whether all hold the same rows and times. Other machines may differ in the last bits, which is nobody's fault."""
    pieces = [
        [_array(part, name, *values["offsets"][row : row + 2]).astype(np.float64) for name in ("frames", "times")]
        for (part, values), row in found
    ]
    return all(
        one.shape == first.shape and np.allclose(one, first, rtol=1e-2, atol=1e-3, equal_nan=True)
        for piece in pieces[1:]
        for one, first in zip(piece, pieces[0], strict=True)
    )


def _array(part: Path, name: str, start: int, stop: int | None) -> Any:
    with zarr.config.set({"array.read_missing_chunks": False}):
        array: Any = zarr.open_array(store=part / name, mode="r")
        return np.asarray(array[start:stop])


def _beside(store: FeatureStore) -> list[Finding]:
    """Failures, unfinished videos and unfinished writes that lie beside the store."""
    failures = [failure for id_, failure in Ledger(store.path).failures().items() if id_ not in store]
    found = []
    if failures:
        reasons = some([f"{failure.id} ({failure.error})" for failure in failures])
        found.append(f"{len(failures):,} sources failed, and the next prvr-extract tries them again: {reasons}")
    partial = list(store.path.parent.glob(f"{escape(store.path.name.removesuffix('.zarr'))}.partial-*.safetensors"))
    if partial:
        found.append(f"{len(partial):,} files with rows of unfinished videos; the next prvr-extract goes on with them")
    return notes(found) + left_behind(store.path.parent, store.path.name)


def _missing(store: FeatureStore, split: Split) -> list[Finding]:
    videos = [video for found in split.videos.values() for video in found]
    text = store.spec.stream == "text"
    wanted = [query.query_id for video in videos for query in video.queries] if text else [v.video_id for v in videos]
    missing = store.missing(dict.fromkeys(wanted))
    return notes([f"{len(missing):,} of the split's {len(wanted):,} are not in it: {some(missing)}"] if missing else [])
