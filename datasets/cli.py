"""``prvr-build-split``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import click

from prvr.datasets import corpora
from prvr.datasets.corpora import Parsed
from prvr.manifests import published, subtitles
from prvr.manifests.console import Common, Outcome, command, listing
from prvr.manifests.errors import ConfigurationError, MissingInput, UnknownName
from prvr.manifests.settings import build as build_settings
from prvr.manifests.split import SPLITS, counts_of
from prvr.manifests.subtitles import Subtitle


@command(
    "prvr-build-split",
    example="prvr-build-split holidays --captions captions.jsonl --out data/holidays \\\n"
    "    --video-features features/clip.video.zarr --text-features features/holidays.roberta.text.zarr",
)
@click.argument("dataset", required=False)
@click.option(
    "--annotations", type=click.Path(path_type=Path), help="Folder of the annotations.  [default: annotations/DATASET]"
)
@click.option(
    "--captions",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="Your own data: JSONL or CSV of video_id, text, and optionally start, end, split; or a folder of SRT or VTT files.",
)
@click.option(
    "--gallery",
    type=click.Path(path_type=Path),
    metavar="FOLDER|LIST|STORE",
    help="Your own videos without captions, to be searched.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the split and its shards.  [default: data/DATASET]"
)
@click.option(
    "--protocol",
    type=click.Choice(["published", "heldout"]),
    default="published",
    help="heldout takes 5 % of the training videos as dev.",
)
@click.option("--subset", metavar="NAME", help="A published part of the dataset; --list shows them.")
@click.option(
    "--available",
    type=click.Path(path_type=Path),
    metavar="FOLDER|LIST|STORE",
    help="Take only the videos that are there.",
)
@click.option(
    "--split",
    "splits",
    type=click.Choice(SPLITS),
    multiple=True,
    help="Take only this split; repeatable.  [default: all]",
)
@click.option("--strict", is_flag=True, help="Fail where counts differ from the published ones, explained or not.")
@click.option(
    "--video-features",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="STORE",
    help="Shard these features; several are joined, on the times of the first.",
)
@click.option(
    "--text-features", type=click.Path(path_type=Path), metavar="STORE", help="Word features of the captions."
)
@click.option(
    "--subtitle-features", type=click.Path(path_type=Path), metavar="STORE", help="Features of the subtitles, if any."
)
@click.option(
    "--pooling",
    type=click.Choice(["published", "corrected"]),
    default="published",
    help="published leaves out the last step of a video, as the papers' code does.",
)
@click.option(
    "--keep-steps", is_flag=True, help="Keep the raw steps of videos that have more than 128, for prvr-export."
)
@click.option("--list", "list_", is_flag=True, help="List the datasets, or the subsets of DATASET, and stop.")
def main(
    common: Common,
    dataset: str | None,
    annotations: Path | None,
    captions: Path | None,
    gallery: Path | None,
    out: Path | None,
    protocol: str,
    subset: str | None,
    available: Path | None,
    splits: tuple[str, ...],
    strict: bool,
    video_features: tuple[Path, ...],
    text_features: Path | None,
    subtitle_features: Path | None,
    pooling: Literal["published", "corrected"],
    keep_steps: bool,
    list_: bool,
) -> Outcome:
    """Make the split of a DATASET from its annotations, and shards from the split and feature stores.

    DATASET is one of --list, or any name of your own with --captions or --gallery. Counts are held against the published
    ones: where they differ the exit code is 1, unless a known reason explains it.
    """
    if list_:
        return _listed(dataset)
    if dataset is None:
        raise ConfigurationError(
            "name a DATASET; --list shows those that are known, --captions and --gallery take your own"
        )
    if captions and gallery:
        raise ConfigurationError("--captions or --gallery, not both: a gallery is videos without captions")
    if (text_features or subtitle_features) and not video_features:
        raise ConfigurationError("shards need --video-features")
    out = out or Path("data") / dataset
    if common.dry_run:
        doing = "the split and its shards" if video_features else "the split"
        return Outcome({"dataset": dataset, "out": str(out)}, f"would write {doing} of {dataset} to {out}")

    from prvr.datasets.build import Available, build, make_split
    from prvr.datasets.captions import gallery as parse_gallery
    from prvr.datasets.captions import parse
    from prvr.datasets.shards import Form
    from prvr.datasets.source import StoreSource
    from prvr.datasets.subtitles import Subtitled

    if (captions or gallery) and subset:
        raise ConfigurationError(f"--subset {subset}: your own data has no published subsets; see --available")
    read: _Read
    if captions:
        read = _Read(parse(captions))
    elif gallery:
        read = _Read(parse_gallery(gallery))
    else:
        read = _read(dataset, annotations or Path("annotations") / dataset, common, subset, splits or SPLITS)
    known = None if captions or gallery else published.load(dataset, subset or "")
    differences = published.compare(known, counts_of(read.parsed.videos)) if known else ()
    here = Available.listed(parse_gallery(available), available.name) if available else None
    split = make_split(dataset, read.parsed, protocol=protocol, subset=subset or "", known=known, available=here)
    if read.subtitles:
        subtitles.write(out, read.subtitles)
    said = Subtitled.open(subtitle_features, out) if subtitle_features else None
    source = StoreSource(video_features, text_features, said) if video_features else None
    built = build(split, out, source, Form(pooling, keep_steps))
    result = built.to_json() | {"differences": [asdict(difference) for difference in differences]}
    unexplained = [difference for difference in differences if strict or not difference.why]
    text = built.text()
    if differences:
        text += f"\nother counts than published:\n{published.table(differences)}"
    return Outcome(result, text, exit_code=1 if unexplained else 0)


@dataclass(frozen=True)
class _Read:
    """What was read: a corpus, and its subtitles where it has some."""

    parsed: Parsed
    subtitles: Mapping[str, tuple[Subtitle, ...]] = field(default_factory=dict)


def _read(dataset: str, annotations: Path, common: Common, subset: str | None, splits: Sequence[str]) -> _Read:
    corpus = corpora.load(dataset)
    if subset and subset not in corpus.SUBSETS:
        raise UnknownName(f"subset of {dataset}", subset, corpus.SUBSETS)
    options = build_settings(corpus.Options, common.settings.get(dataset, {}), where=dataset)
    if isinstance(corpus, corpora.Made):
        corpus.prepare(annotations, options)
    elif not annotations.is_dir():
        raise MissingInput(f"{annotations}: no annotations there; name their folder with --annotations")
    parsed = corpus.parse(annotations, options, subset=subset or "", splits=splits)
    if not isinstance(corpus, corpora.Subtitled):
        return _Read(parsed)
    ids = {video.video_id for videos in parsed.videos.values() for video in videos}
    return _Read(parsed, corpus.subtitles(annotations, ids))


def _listed(dataset: str | None) -> Outcome:
    if dataset is None:
        return Outcome({"datasets": list(corpora.names())}, listing("datasets", corpora.names()))
    subsets = corpora.load(dataset).SUBSETS
    lines = tuple(f"{name}: {about}" for name, about in subsets.items())
    return Outcome({"dataset": dataset, "subsets": dict(subsets)}, listing(f"subsets of {dataset}", lines))
