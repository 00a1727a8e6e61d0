"""``prvr-extract``."""

from pathlib import Path

import click

from prvr.manifests import registry
from prvr.manifests.console import SOME_FAILED, Common, Outcome, command, listing
from prvr.manifests.errors import ConfigurationError


@command("prvr-extract", example="prvr-extract videos/ --backbone clip --out features/")
@click.argument("source", nargs=-1)
@click.option(
    "--backbone",
    multiple=True,
    metavar="NAME",
    help="Backbone with its default recipe; repeat to run several on one decode.",
)
@click.option("--recipe", multiple=True, metavar="NAME", help="A recipe by name; implies its backbone.")
@click.option(
    "--weights",
    multiple=True,
    metavar="VALUE",
    help="NAME, PATH or random:SEED; BACKBONE=VALUE where there are several.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("features"), help="Folder of the feature stores.")
@click.option("--name", help="Name of the store.  [default: RECIPE.video, DATASET.RECIPE.text or .subtitles]")
@click.option("--fps", type=float, help="Frames a second to look at.  [default: the recipe's]")
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--decoder", default="auto", help="auto, or one by name; auto takes decord where it is exact, PyAV elsewhere."
)
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", help="Of the stored features.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Networks compute in; auto is float32 on a CPU, and on a GPU half precision where the features agree.",
)
@click.option("--compile", "compiled", is_flag=True, help="Send networks through torch.compile; needs a C++ compiler.")
@click.option(
    "--batch-size", type=click.IntRange(1), help="Rows that a network computes together.  [default: the recipe's]"
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one a core, at most 8; one on a GPU]")
@click.option("--threads", type=click.IntRange(1), default=1, help="Threads of a model in one process.")
@click.option(
    "--readers", type=click.IntRange(1), help="Threads that decode in one process.  [default: 1; one a core for a GPU]"
)
@click.option("--engine", default="local", help="Where it runs: local, or ray for many machines.")
@click.option("--num-parts", type=click.IntRange(1), default=1, help="Divide the sources among this many machines.")
@click.option("--part-index", type=click.IntRange(0), default=0, help="Which of them this one is, from 0.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many sources.")
@click.option("--id-from", type=click.Choice(["stem", "path"]), default="stem", help="What a video's id is.")
@click.option("--frame-rate", type=float, help="Take folders of pictures as videos of so many frames a second.")
@click.option(
    "--subtitles",
    "subtitled",
    is_flag=True,
    help="Of a split folder take the subtitles of its videos, not the captions.",
)
@click.option("--skip-failed", is_flag=True, help="Do not try again what failed before.")
@click.option(
    "--adapt",
    is_flag=True,
    help="Tune roberta on the training captions first, as TVR did: an epoch, hours on a CPU. Settings: adapt.KEY.",
)
@click.option("--overwrite", is_flag=True, help="Delete the stores named here, and start again.")
@click.option(
    "--list", "list_", is_flag=True, help="List backbones and recipes, and stop; with --recipe, print that one."
)
def main(
    common: Common,
    source: tuple[str, ...],
    backbone: tuple[str, ...],
    recipe: tuple[str, ...],
    weights: tuple[str, ...],
    out: Path,
    name: str | None,
    fps: float | None,
    device: str,
    decoder: str,
    dtype: str,
    precision: str,
    compiled: bool,
    batch_size: int | None,
    workers: int | None,
    threads: int,
    readers: int | None,
    engine: str,
    num_parts: int,
    part_index: int,
    limit: int | None,
    id_from: str,
    frame_rate: float | None,
    subtitled: bool,
    skip_failed: bool,
    adapt: bool,
    overwrite: bool,
    list_: bool,
) -> Outcome:
    """Extract features from SOURCE: folders (searched to the bottom), video files, globs, URLs that fsspec reads, lists of
    these, or - for a list on stdin; with --frame-rate, folders of pictures; or a split folder, for the features of its
    captions, or with --subtitles of what is said in its videos.

    What is in the stores already is not extracted again. What fails is listed, and tried again the next time.
    """
    if list_:
        return _listed(recipe)
    if not source:
        raise ConfigurationError("name a SOURCE: a folder of videos, or a split folder for its captions")
    if not backbone and not recipe:
        raise ConfigurationError("name a --backbone or a --recipe; --list shows them")
    if part_index >= num_parts:
        raise ConfigurationError(f"--part-index {part_index} counts from 0 and is below --num-parts {num_parts}")

    from prvr.extract.prepare import prepare

    job, found, sources = prepare(
        source,
        backbone,
        recipe,
        weights=weights,
        out=out,
        name=name,
        fps=fps,
        device=device,
        decoder=decoder,
        dtype=dtype,
        precision=precision,
        compiled=compiled,
        batch_size=batch_size,
        threads=threads,
        readers=readers,
        part=(part_index, num_parts),
        limit=limit,
        id_from=id_from,
        frame_rate=frame_rate,
        subtitled=subtitled,
        skip_failed=skip_failed,
        adapt=adapt,
        settings=common.settings,
    )
    stores = [str(plan.store) for plan in job.plans]
    if common.dry_run:
        text = f"would extract {len(sources)} sources into {', '.join(stores)}"
        return Outcome({"stores": stores, "total": len(sources), "ignored": found.ignored}, text)

    from prvr.extract import engines
    from prvr.extract.prepare import adapted, default_workers, start_again
    from prvr.manifests.progress import progress

    if overwrite:
        start_again(job)
    if adapt:
        job = adapted(job, Path(source[0]), common.settings)
    workers = workers or default_workers(job, len(sources))
    reports = list(progress(engines.load(engine).extract(job, sources, workers), "extract", len(sources)))
    counts = {
        status: sum(report.status == status for report in reports) for status in ("extracted", "skipped", "failed")
    }
    failed = [report for report in reports if report.status == "failed"]
    what = {"video": "videos", "text": "captioned videos", "subtitles": "subtitled videos"}[found.stream]
    result = {
        "stores": stores,
        "videos": {"total": len(sources), **counts},
        "ignored": found.ignored,
        "errors": [{"source": report.source, "error": report.error} for report in failed],
    }
    lines = [f"{len(sources)} {what}: " + ", ".join(f"{count} {status}" for status, count in counts.items())]
    lines += [f"  failed: {report.source}: {report.error}" for report in failed]
    lines += [f"  {store}" for store in stores]
    return Outcome(result, "\n".join(lines), SOME_FAILED if failed else 0)


def _listed(asked: tuple[str, ...]) -> Outcome:
    from prvr.extract import recipes

    if asked:
        return Outcome({"recipes": {name: recipes.raw(name) for name in asked}}, "\n".join(map(recipes.text, asked)))
    backbones = registry.names("prvr.extract.backbones")
    abouts = {name: recipes.raw(name).get("about", "") for name in recipes.names()}
    width = max(map(len, abouts))
    lines = tuple(f"{name:{width}}  {about}" for name, about in abouts.items())
    return Outcome(
        {"backbones": list(backbones), "recipes": list(abouts)},
        f"{listing('backbones', backbones)}\n{listing('recipes', lines)}",
    )
