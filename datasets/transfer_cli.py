"""``prvr-import`` and ``prvr-export``."""

from pathlib import Path
from typing import Literal

import click

from prvr.manifests import registry
from prvr.manifests.console import Common, Outcome, command, listing
from prvr.manifests.errors import ConfigurationError

_LAYOUTS = "prvr.datasets.foreign"


@command("prvr-import", example="prvr-import mssl ROOT/tvr --feature i3d_resnet --out shards/tvr")
@click.argument("layout", required=False)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the split and its shards.  [default: data/NAME of PATH]"
)
@click.option("--feature", metavar="NAME", help="Which features of a collection.  [default: the only ones]")
@click.option(
    "--split",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Split folder with the videos and captions.  [default: the collection's caption files]",
)
@click.option(
    "--text", type=click.Path(path_type=Path), help="Word features of the captions.  [default: the collection's]"
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
@click.option("--list", "list_", is_flag=True, help="List the layouts, and stop.")
def import_(
    common: Common,
    layout: str | None,
    path: Path | None,
    out: Path | None,
    feature: str | None,
    split: Path | None,
    text: Path | None,
    pooling: Literal["published", "corrected"],
    keep_steps: bool,
    list_: bool,
) -> Outcome:
    """Make shards of features that others have made, in a LAYOUT of --list, at PATH.

    PATH is a collection (MS-SL's folder of one data set, named after it, with FeatureData and TextData), whose caption files
    train, val and test become the splits train, dev and test; or a file or folder of features, with --split and --text.
    """
    if list_:
        return _listed()
    if layout is None or path is None:
        raise ConfigurationError("name a LAYOUT and a PATH; --list shows the layouts")
    out = out or Path("data") / path.absolute().stem
    if common.dry_run:
        return Outcome({"layout": layout, "out": str(out)}, f"would write the shards of {path} to {out}")

    from prvr.datasets.imports import import_features
    from prvr.datasets.shards import Form

    form = Form(pooling, keep_steps)
    built = import_features(layout, path, out, feature=feature, split=split, text=text, form=form)
    return Outcome(built.to_json(), built.text())


@command("prvr-export", example="prvr-export mssl shards/tvr --out ROOT --feature i3d_resnet")
@click.argument("layout", required=False)
@click.argument("shards", required=False, type=click.Path(path_type=Path), metavar="DIR")
@click.option("--out", type=click.Path(path_type=Path), metavar="ROOT", help="Folder for the collection.")
@click.option("--collection", metavar="NAME", help="The collection's name.  [default: the dataset's]")
@click.option("--feature", metavar="NAME", help="What its features are called.  [default: as their recipe]")
@click.option(
    "--pooled", is_flag=True, help="Where the shards have no raw steps of a video, write its 128 pooled frames."
)
@click.option("--overwrite", is_flag=True, help="Replace these features, words and captions where they are there.")
@click.option("--list", "list_", is_flag=True, help="List the layouts, and stop.")
def export(
    common: Common,
    layout: str | None,
    shards: Path | None,
    out: Path | None,
    collection: str | None,
    feature: str | None,
    pooled: bool,
    overwrite: bool,
    list_: bool,
) -> Outcome:
    """Write the shards of DIR back to a LAYOUT of --list, so that other people's code reads them: a collection under ROOT."""
    if list_:
        return _listed()
    if layout is None or shards is None or out is None:
        raise ConfigurationError("name a LAYOUT, the folder DIR of shards, and --out; --list shows the layouts")
    if common.dry_run:
        return Outcome({"layout": layout, "out": str(out)}, f"would write the features of {shards} under {out}")

    from prvr.datasets import exports

    done = exports.export(
        layout, shards, out, collection=collection, feature=feature, pooled=pooled, overwrite=overwrite
    )
    pooled_note = f", {done.pooled} of them pooled" if done.pooled else ""
    text = f"{done.out}: {done.videos} videos{pooled_note}, {done.queries} queries, as {done.feature}"
    return Outcome(done.to_json(), text)


def _listed() -> Outcome:
    names = registry.names(_LAYOUTS)
    return Outcome({"layouts": list(names)}, listing("layouts", names))
