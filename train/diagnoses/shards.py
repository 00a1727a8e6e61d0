"""Shard folders: every index against its tars, every tar hashed, a sample of members decoded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prvr.datasets.foreign import some
from prvr.datasets.index import Index, Member, verify
from prvr.datasets.sample import decode
from prvr.manifests.errors import CorruptData, PrvrError
from prvr.manifests.split import SPLITS, Split
from prvr.train.diagnoses import Diagnosis, Finding, Look, evenly, left_behind, notes, wrong
from prvr.train.diagnoses import split as splits
from prvr.train.diagnoses._rows import Census
from prvr.train.diagnoses.store import made_by, random_weights

KIND = "shards"
_END = ".index.json"


def recognise(path: Path) -> bool:
    """A folder with an index."""
    return path.is_dir() and next(path.glob(f"*{_END}"), None) is not None


def diagnose(path: Path, look: Look) -> Diagnosis:
    """Every split that has an index, and the split folder that it lies in."""
    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    declared: list[str] = []
    if splits.recognise(path):
        try:
            whole = Split.read(path)
            about, found = splits.examine(path, whole)
            facts |= {key: about[key] for key in ("dataset", "protocol", "repairs")}
            findings += found
            declared = list(whole.videos)
        except PrvrError as error:
            findings += wrong([str(error)])
    else:
        findings += notes(["no split.json beside the shards"])
    indexes: dict[str, Index] = {}
    census = Census()
    found_names = {file.name.removesuffix(_END) for file in path.glob(f"*{_END}")}
    names = [*(name for name in SPLITS if name in found_names), *sorted(found_names - set(SPLITS))]
    for name in names:
        try:
            indexes[name] = index = Index.read(path, name)
        except PrvrError as error:
            findings += wrong([str(error)])
            continue
        facts[name] = {
            "videos": len(index.video_ids),
            "queries": index.queries,
            "shards": len(index.shards),
            "bytes": sum(shard.size for shard in index.shards),
        }
        findings += wrong(_examine(path, index, census, look.sample))
        twice = len(index.video_ids) - len(set(index.video_ids))
        findings += wrong([f"{name}: {twice:,} videos stand in its shards more than once"] if twice else [])
        if index.missing:
            findings += notes([f"{name}: {len(index.missing):,} videos have no features: {some(index.missing)}"])
    if indexes:
        facts |= _features(indexes)
        findings += _disagreements(indexes)
    findings += splits.overlaps({name: set(index.video_ids) for name, index in indexes.items()})
    findings += _unfinished(path, [*declared, *names], indexes)
    return Diagnosis(path, KIND, facts | census.facts(), findings + census.findings() + left_behind(path))


def _unfinished(path: Path, names: list[str], indexes: dict[str, Index]) -> list[Finding]:
    """Tars that no index names: left from before, or all of a split whose writing was interrupted."""
    findings: list[Finding] = []
    for name in dict.fromkeys(names):
        tars = sorted(file.name for file in path.glob(f"{name}-[0-9]*.tar"))
        if name in indexes:
            stray = sorted(set(tars) - {shard.name for shard in indexes[name].shards})
            findings += notes([f"{name}: {len(stray):,} tars stand in no index: {some(stray)}"] if stray else [])
        elif not (path / f"{name}{_END}").is_file():
            missing = f"{name}: {len(tars):,} tars without an index: prvr-build-split did not finish them"
            findings += wrong([missing]) if tars else notes([f"{name}: a split without shards"])
    return findings


def _examine(folder: Path, index: Index, census: Census, at_most: int) -> list[str]:
    """Hash every shard, decode a sample of its members."""
    problems = []
    sample = set(evenly(range(len(index.video_ids)), at_most))
    place = 0
    for shard in index.shards:
        members = [member for number, member in enumerate(shard.members, place) if number in sample]
        place += len(shard.members)
        try:
            verify(shard, folder)
            with (folder / shard.name).open("rb") as file:
                for member in members:
                    problem = _member(file, member, index, census)
                    problems += [f"{shard.name}: {problem}"] if problem else []
        except CorruptData as error:
            problems.append(str(error))
    return problems


def _member(file: Any, member: Member, index: Index, census: Census) -> str:
    """What is wrong with one sample, or nothing."""
    parts = []
    for offset, length in (member.tensors, member.line):
        file.seek(offset)
        parts.append(file.read(length))
    sample = decode(*parts)
    if sample.video.video_id != member.video_id or len(sample.words) != member.queries:
        return f"{sample.video.video_id!r} with {len(sample.words)} queries, where the index says {member}"
    for name, rows, width in (
        ("frames", sample.frames, index.frame_width),
        ("clips", sample.clips, index.frame_width),
        *(("words", words, index.word_width) for words in sample.words),
    ):
        if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
            return f"{member.video_id}: {name} {list(rows.shape)}, where [rows, {width}] belong"
        if name != "frames" and not np.isfinite(rows).all():
            return f"{member.video_id}: NaN or Inf in {name}"
    census.add(member.video_id, sample.frames)
    return ""


def _features(indexes: dict[str, Index]) -> dict[str, Any]:
    index = next(iter(indexes.values()))
    return {
        "video features": [{**made_by(spec), "width": spec["dim"]} for spec in index.video_features],
        "text features": {**made_by(index.text_features), "width": index.word_width} if index.text_features else "none",
        "pooling": index.pooling,
    }


def _specs(index: Index) -> list[Mapping[str, Any]]:
    return [spec for spec in (*index.video_features, index.text_features, index.subtitle_features) if spec]


def _disagreements(indexes: dict[str, Index]) -> list[Finding]:
    first, *others = indexes.values()
    keys = ("backbone", "recipe_digest", "weights_sha256", "dim")

    def of(index: Index) -> list[list[Any]]:
        return [[spec[key] for key in keys] for spec in _specs(index)]

    findings = random_weights(_specs(first))
    return findings + wrong(
        f"{first.split} and {other.split} are of other features" for other in others if of(other) != of(first)
    )
