"""``prvr-build-split``."""

from pathlib import Path

import click

from prvr.datasets import corpora
from prvr.manifests.console import Common, Outcome, command, listing
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.settings import build as build_settings


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
    help="Your own data: JSONL of video_id, text, and optionally start, end, split.",
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
@click.option(
    "--video-features",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="STORE",
    help="Shard these features; several are joined.",
)
@click.option(
    "--text-features", type=click.Path(path_type=Path), metavar="STORE", help="Word features of the captions."
)
@click.option("--list", "list_", is_flag=True, help="List the datasets, and stop.")
def main(
    common: Common,
    dataset: str | None,
    annotations: Path | None,
    captions: Path | None,
    out: Path | None,
    protocol: str,
    video_features: tuple[Path, ...],
    text_features: Path | None,
    list_: bool,
) -> Outcome:
    """Make the split of a DATASET from its annotations, and shards from the split and feature stores.

    DATASET is one of --list, or any name of your own with --captions.
    """
    if list_:
        return Outcome({"datasets": list(corpora.names())}, listing("datasets", corpora.names()))
    if dataset is None:
        raise ConfigurationError("name a DATASET; --list shows those that are known, --captions takes your own")
    out = out or Path("data") / dataset
    if common.dry_run:
        doing = "the split and its shards" if video_features else "the split"
        return Outcome({"dataset": dataset, "out": str(out)}, f"would write {doing} of {dataset} to {out}")

    from prvr.datasets.build import build, make_split
    from prvr.datasets.captions import parse

    if captions:
        parsed = parse(captions)
    else:
        corpus = corpora.load(dataset)
        annotations = annotations or Path("annotations") / dataset
        options = build_settings(corpus.Options, common.settings.get(dataset, {}), where=dataset)
        if isinstance(corpus, corpora.Made):
            corpus.prepare(annotations, options)
        elif not annotations.is_dir():
            raise MissingInput(f"{annotations}: no annotations there; name their folder with --annotations")
        parsed = corpus.parse(annotations, options)
    built = build(make_split(dataset, parsed, protocol=protocol), out, video_features, text_features)
    result = built.to_json()
    lines = [f"{dataset} in {out}"]
    for name, counts in result["splits"].items():
        shards = result["shards"].get(name)
        sharded = f", {shards['videos']} videos in {shards['files']} shards" if shards else ""
        lines.append(f"  {name:5}  {counts['videos']} videos, {counts['queries']} queries{sharded}")
    lines += [f"  repaired: {rule}, {count} times" for rule, count in result["repairs"].items()]
    return Outcome(result, "\n".join(lines))
