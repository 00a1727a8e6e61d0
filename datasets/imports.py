"""What ``prvr-import`` does: features of others to shards, straight from their files."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prvr.datasets.build import Built, build
from prvr.datasets.foreign import Array, Entry, Layout, _captions, layout_of, load, some
from prvr.datasets.shards import Form
from prvr.datasets.source import Raw
from prvr.datasets.store import FeatureSpec
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.files import digest_of, sha256_of
from prvr.manifests.split import Split, Video


@dataclass(frozen=True)
class Features:
    """One kind of features of others: arrays by id, in the order of their file; ``seconds_a_row`` where its layout says it.

    Raises:
        CorruptData: nothing that is features, or two widths: names the first that is odd.
    """

    path: Path
    title: str
    entries: Mapping[str, Entry]
    seconds_a_row: float | None = None

    def __post_init__(self) -> None:
        if not self.entries:
            raise CorruptData(f"{self.path}: no features in it")
        for entry in self.entries.values():
            if not 1 <= len(entry.shape) <= 2 or 0 in entry.shape or entry.dtype.kind != "f":
                raise CorruptData(
                    f"{self.path}: {entry.id} is {list(entry.shape)} of {entry.dtype}, where rows of features belong"
                )
            if entry.shape[-1] != self.width:
                raise CorruptData(f"{self.path}: {entry.id} is {entry.shape[-1]} wide, the first is {self.width}")

    @property
    def width(self) -> int:
        """E."""
        return next(iter(self.entries.values())).shape[-1]

    def find(self, *names: str) -> Entry | None:
        """The entry of the first of these names that is there."""
        return next((self.entries[name] for name in names if name in self.entries), None)

    def rows(self, *names: str) -> Array:
        """Its array [T, E]; raises CorruptData where it is not there, cannot be read, or is not finite."""
        entry = self.find(*names)
        if entry is None:
            raise CorruptData(f"{self.path}: no {names[0]}")
        rows = np.atleast_2d(entry.read())
        if not np.isfinite(rows).all():
            raise CorruptData(f"{self.path}: {entry.id}: NaN or Inf in its rows {list(rows.shape)}")
        return rows

    def spec(self, stream: str, name: str) -> FeatureSpec:
        """What is known of how they were made: where they come from, and how wide they are."""
        about = {"layout": self.title, "features": name, "width": self.width}
        return FeatureSpec(
            stream=stream, backbone="imported", recipe=name, recipe_digest=digest_of(about), weights="unknown",
            weights_sha256="unknown", dim=self.width, dtype="float32", compute_threads=0, versions={}, settings=about,
        )  # fmt: skip


class ForeignSource:
    """Features of others as a source of samples: few of their layouts have times.

    Args:
        videos, words: the arrays; words None where there are no queries.
        names: what their specs call them.
    """

    subtitle_features: FeatureSpec | None = None

    def __init__(self, videos: Features, words: Features | None, names: tuple[str, str]) -> None:
        self._videos = videos
        self._words = words
        self._marks = [_mark(one.path) for one in (videos, words) if one]
        self.video_features: tuple[FeatureSpec, ...] = (videos.spec("video", names[0]),)
        self.text_features: FeatureSpec | None = words.spec("text", names[1]) if words else None

    def lacking(self, video_id: str) -> tuple[str, ...]:
        """See Source."""
        return () if self._videos.find(*_video_names(video_id)) else (str(self._videos.path),)

    def check(self, videos: Sequence[Video]) -> None:
        """See Source."""
        wanted = [query.query_id for video in videos for query in video.queries]
        missing = [id_ for id_ in wanted if not (self._words and self._words.find(*_query_names(id_)))]
        if missing:
            where = self._words.path if self._words else "no text features"
            raise ConfigurationError(
                f"{where}: no words of {len(missing):,} of {len(wanted):,} queries: {some(missing)}"
            )

    def fingerprint(self, video: Video) -> str:
        """See Source: of the whole files."""
        return " ".join(self._marks)

    def raw(self, video: Video) -> Raw:
        """See Source."""
        steps, length = self._videos.rows(*_video_names(video.video_id)), self._videos.seconds_a_row
        words = [self._words.rows(*_query_names(query.query_id)) for query in video.queries] if self._words else []
        return Raw(steps, None if length is None else (np.arange(len(steps)) + 0.5) * length, tuple(words))

    def report(self) -> Mapping[str, Any]:
        """See Source."""
        return {}


def _video_names(video_id: str) -> tuple[str, ...]:
    return video_id, f"{video_id}/features"


def _query_names(query_id: str) -> tuple[str, ...]:
    # lighthouse names its files so, and keeps two arrays in each.
    return query_id, f"qid{query_id}", f"{query_id}/last_hidden_state", f"qid{query_id}/last_hidden_state"


def import_features(
    layout: str, path: Path, out: Path, *, feature: str | None, split: Path | None, text: Path | None, form: Form
) -> Built:
    """Shards of a collection, or of features with a ``split`` folder that says which videos and captions there are.

    Raises:
        MissingInput: nothing there.
        ConfigurationError: several kinds of features and none chosen; no captions.
        CorruptData: a file that is not whole, or not features.
    """
    reader = load(layout)
    if not path.exists():
        raise MissingInput(f"{path}: no such file or folder")
    path = path.absolute()  # A collection has the name of its folder, even where it is ".".
    collection = path.is_dir() and not reader.recognise(path)
    place, name = _place(reader, path, feature) if collection else (path, feature or path.stem)
    text = text or (reader.words(path, name) if collection else None)
    known = Split.read(split) if split else _split(path)
    with ExitStack() as stack:
        videos = stack.enter_context(opened(reader, place))
        words = None
        if text is not None and text.exists():
            words = stack.enter_context(opened(layout_of(text) or reader, text))
        elif any(video.queries for own in known.videos.values() for video in own):
            raise MissingInput(f"{text or path}: no text features there; name them with --text")
        names = (f"{layout}/{name}", f"{layout}/{text.stem if text else ''}")
        return build(known, out, ForeignSource(videos, words, names), form)


@contextmanager
def opened(layout: Layout, path: Path) -> Iterator[Features]:
    """Features of others, while their file is open; raises CorruptData where something is wrong with it."""
    if not layout.recognise(path):
        raise CorruptData(f"{path}: not {layout.TITLE}; prvr-doctor says what it is")
    with layout.read(path) as contents:
        if contents.wrong:
            raise CorruptData(f"{path}: {contents.wrong[0]}; prvr-doctor tells all")
        twice = [id_ for id_, count in Counter(entry.id for entry in contents.entries).items() if count > 1]
        if twice:
            raise CorruptData(f"{path}: more than one array of {some(twice)}")
        entries = {entry.id: entry for entry in contents.entries}
        yield Features(path, layout.TITLE, entries, contents.seconds_a_row)


def _place(reader: Layout, root: Path, feature: str | None) -> tuple[Path, str]:
    places = reader.places(root)
    if not places:
        raise MissingInput(f"{root}: no {reader.TITLE} there; prvr-doctor says what a file is")
    if feature is None and len(places) == 1:
        feature = next(iter(places))
    if feature is None or feature not in places:
        what = f"no features {feature!r}" if feature else "several kinds of features"
        raise ConfigurationError(f"{root}: {what} there; choose with --feature: {', '.join(places)}")
    return places[feature], feature


def _split(root: Path) -> Split:
    """The split that a collection's caption files make."""
    tally: Counter[str] = Counter()
    files = {name: path for name, path in _captions.places(root).items() if path.is_file()}
    videos = {name: found for name, path in files.items() if (found := _captions.read(path, tally))}
    if not videos:
        raise MissingInput(
            f"{root}: no captions in TextData/{root.name}train.caption.txt or the like; name a split folder with --split"
        )
    sources = {path.name: sha256_of(path) for path in files.values()}
    return Split(root.name, "published", videos, sources=sources, repairs=dict(tally))


def _mark(path: Path) -> str:
    """Of a file, or of every file in a folder: name, size, time and first bytes. To hash tens of gigabytes would take longer
    than to read them once."""
    found = []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened_file:
                found.append([file.name, file.stat().st_size, file.stat().st_mtime_ns, opened_file.read(64).hex()])
    return digest_of(found)
