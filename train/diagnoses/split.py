"""Split folders: counts, repairs, digests."""

from pathlib import Path
from typing import Any

from prvr.datasets.foreign import some
from prvr.manifests.files import read_json
from prvr.manifests.split import Split
from prvr.train.diagnoses import Diagnosis, Finding, Look, left_behind, notes, wrong

KIND = "split"


def recognise(path: Path) -> bool:
    """A folder with ``split.json``."""
    return (path / "split.json").is_file()


def diagnose(path: Path, look: Look) -> Diagnosis:
    """Read every line, and hold it against ``split.json``; raises PrvrError where it does not read at all."""
    found = Split.read(path)
    facts, findings = examine(path, found)
    ids = {name: {video.video_id for video in videos} for name, videos in found.videos.items()}
    return Diagnosis(path, KIND, facts, findings + overlaps(ids) + left_behind(path))


def examine(path: Path, split: Split) -> tuple[dict[str, Any], list[Finding]]:
    """Facts and findings on the split that was read from a folder."""
    counts, head = split.counts(), read_json(path / "split.json")
    facts: dict[str, Any] = {"dataset": split.dataset, "protocol": split.protocol, **counts}
    if split.subset:
        facts["subset"] = split.subset
    facts["durations"] = {
        name: f"{sum(video.duration is not None for video in videos):,} of {len(videos):,}"
        for name, videos in split.videos.items()
    }
    facts["repairs"] = dict(split.repairs) or "none"
    found = []
    if head["counts"] != counts:
        found.append(f"split.json counts {head['counts']}, its files have {counts}")
    if head["digest"] != split.digest():
        found.append("split.json: its digest is not that of its files")
    odd = [
        f"{name}: {counts[name]['videos']:,} videos and {counts[name]['queries']:,} queries, published are {dict(given)}"
        for name, given in split.published.items()
        if not split.left_out and name in counts and any(counts[name].get(key) != value for key, value in given.items())
    ]
    if split.missing:
        odd.append(f"{len(split.missing):,} videos have no features: {some(split.missing)}")
    return facts, wrong(found) + notes(odd)


def overlaps(videos: dict[str, set[str]]) -> list[Finding]:
    """Videos that stand in two splits. In train and in another, prvr-train refuses to start."""
    findings: list[Finding] = []
    known = list(videos)
    for place, first in enumerate(known):
        for second in known[place + 1 :]:
            if both := sorted(videos[first] & videos[second]):
                text = [f"{len(both):,} videos stand in {first} and in {second}: {some(both)}"]
                findings += wrong(text) if "train" in (first, second) else notes(text)
    return findings
