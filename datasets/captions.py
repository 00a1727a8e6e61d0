"""One's own data: any folder of videos, with captions (``parse``) or without (``gallery``)."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from prvr.datasets import caption_files
from prvr.datasets.caption_files import Line, refused
from prvr.datasets.corpora import Parsed
from prvr.datasets.corpora._annotations import lines_of
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.repair import repaired
from prvr.manifests.split import Query, Video
from prvr.manifests.videos import is_video, visible_files

TEST_PERCENT = 10
_log = logging.getLogger(__name__)


def parse(path: Path) -> Parsed:
    """Read captions: a JSONL or CSV file, or a folder of subtitle files. Where no line names a split, videos are divided by a
    hash of their id, 90 % train, 10 % test.

    Raises:
        MissingInput: absent or empty.
        ConfigurationError: a line that cannot be read, by its number; a video in two splits; two subtitle files of one video.
    """
    captions = caption_files.read(path)
    lines = captions.lines
    if not lines:
        raise MissingInput(f"{path}: no captions in it")
    if any(line.split for line in lines) and not all(line.split for line in lines):
        raise ConfigurationError(f"{path}: some lines name a split and some do not")
    divided = not lines[0].split
    if divided:
        _log.info(
            "%s: no line names a split; %d %% of the videos, by a hash of their id, become test", path, TEST_PERCENT
        )

    repairs = Counter(captions.left_out)
    videos: dict[str, list[Line]] = {}
    for line in lines:
        videos.setdefault(line.video_id, []).append(line)
    tested = _tested(videos) if divided else set()
    by_split: dict[str, list[Video]] = {}
    for video_id, own in videos.items():
        splits = {line.split for line in own}
        if len(splits) > 1:
            raise ConfigurationError(f"{path}: video {video_id!r} stands in two splits")
        duration = max((line.duration for line in own if line.duration), default=None)
        queries = tuple(
            repaired(
                Query(line.query_id or f"{video_id}#enc#{number}", line.text, line.start, line.end, line.type),
                duration,
                repairs,
            )
            for number, line in enumerate(own)
        )
        split = own[0].split or ("test" if video_id in tested else "train")
        by_split.setdefault(split, []).append(Video(video_id, duration, queries))
    return Parsed({name: tuple(found) for name, found in by_split.items()}, captions.sources, repairs)


def gallery(path: Path) -> Parsed:
    """Videos without captions, to be searched, all in the split ``test``: those of a folder (an id is a file's stem), of a text
    file with an id a line, or of a feature store (in the order of their ids, since that of a store is by chance).

    Raises:
        MissingInput: absent, or no video in it.
        ConfigurationError: two files of one id; a store of other features than those of videos.
    """
    sources: tuple[Path, ...] = ()
    if path.suffix == ".zarr" or (path / "zarr.json").is_file():
        ids = _stored(path)
    elif path.is_dir():
        ids = _stems(path)
    elif path.is_file():
        with refused():
            ids = [line.strip() for _, line in lines_of(path)]
        sources = (path,)
    else:
        raise MissingInput(f"{path}: no such folder, list of ids or feature store")
    if not ids:
        raise MissingInput(f"{path}: no video in it")
    return Parsed({"test": tuple(Video(video_id, None, ()) for video_id in ids)}, sources)


def _stems(folder: Path) -> list[str]:
    by_id: dict[str, Path] = {}
    for file in filter(is_video, visible_files(folder)):
        if by_id.setdefault(file.stem, file) is not file:
            raise ConfigurationError(f"{by_id[file.stem]} and {file} would both be {file.stem!r}; rename one")
    return list(by_id)


def _stored(path: Path) -> list[str]:
    from prvr.datasets.store import FeatureStore

    store = FeatureStore.open(path)
    if store.spec.stream != "video":
        raise ConfigurationError(f"{path}: features of {store.spec.stream}, where those of videos belong")
    return sorted(store.ids)


def _tested(video_ids: Iterable[str]) -> set[str]:
    """The tested tenth: of two videos and more at least one, and at most half."""
    by_hash = sorted(video_ids, key=hash_percent)
    tenth = sum(hash_percent(video_id) < TEST_PERCENT for video_id in by_hash)
    return set(by_hash[: min(max(tenth, 1), len(by_hash) // 2)])


def hash_percent(video_id: str) -> float:
    """A number in [0, 100) that depends on the id alone: how videos are divided where nobody else has done it."""
    return int.from_bytes(hashlib.sha256(video_id.encode()).digest()[:8], "big") / 2**64 * 100
