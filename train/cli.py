"""``prvr-train``, ``prvr-eval``, ``prvr-doctor`` and ``prvr-demo``."""

import os
from pathlib import Path
from typing import Any

import click

from prvr.manifests import registry
from prvr.manifests.console import Common, Outcome, command, listing
from prvr.manifests.errors import ConfigurationError

_PARTS = {"models": "prvr.train.models", "objectives": "prvr.train.objectives"}
_DIAGNOSES = {"kinds": "prvr.train.diagnoses", "layouts": "prvr.datasets.foreign"}
_PRESETS = "prvr.train.presets"


class _Place(click.ParamType):  # type: ignore[type-arg]
    """A folder, or a URL that fsspec reads."""

    name = "place"

    def convert(
        self, value: str | Path, parameter: click.Parameter | None, context: click.Context | None
    ) -> str | Path:
        return value if "://" in str(value) else Path(value)


_PLACE = _Place()


@command("prvr-train", example="prvr-train --shards data/holidays --model ms-sl --out runs/holidays")
@click.option("--shards", type=_PLACE, metavar="DIR|URL", help="Folder of prvr-build-split, with shards; or its URL.")
@click.option("--model", metavar="BASE[+OBJECTIVE…]", help="What to train.  [default: ms-sl]")
@click.option(
    "--preset", help="Hyper-parameters by name.  [default: MODEL.DATASET, or that of its BASE, where there is one]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="RUN", help="Folder of the run.  [default: runs/DATASET.MODEL]"
)
@click.option("--epochs", type=click.IntRange(1), help="At most so many.  [default: the preset's, or 100]")
@click.option("--batch-size", type=click.IntRange(1), help="Videos a step.  [default: the preset's, or 128]")
@click.option("--lr", type=float, help="Learning rate.  [default: the preset's, or 2.5e-4]")
@click.option("--seed", type=click.IntRange(0), help="Of weights, order and dropout.  [default: the preset's, or 2018]")
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="bf16 autocasts on a GPU.  [default: fp32]")
@click.option(
    "--threads", type=click.IntRange(0), help="Of the CPU's arithmetic; 0 is torch's own choice.  [default: 0]"
)
@click.option(
    "--select-on",
    type=click.Choice(["dev", "test"]),
    help="Split that chooses the epoch.  [default: dev if there is one]",
)
@click.option("--allow-overlap", is_flag=True, help="Train though a video stands in train and in the reported split.")
@click.option("--overwrite", is_flag=True, help="Delete the run, and start again.")
@click.option("--list", "list_", is_flag=True, help="List models, objectives, presets and legal pairs, and stop.")
def main(
    common: Common,
    shards: Path | str | None,
    out: Path | None,
    device: str,
    allow_overlap: bool,
    overwrite: bool,
    list_: bool,
    **options: Any,
) -> Outcome:
    """Train a model on shards. A run that was stopped goes on where it was saved last.

    Under torchrun, each process reads and encodes its share of a batch, and the loss is that of one process:
    torchrun --no-python --nproc-per-node 4 prvr-train …
    """
    if list_:
        from prvr.train.pairs import matrix, pairs

        known = {kind: registry.names(package) for kind, package in _PARTS.items()}
        known["presets"] = registry.data_names(_PRESETS)
        text = "\n".join(listing(title, entries) for title, entries in known.items())
        found = pairs()
        grid = {
            name: {pair.objective: pair.refusal or True for pair in found if pair.model == name}
            for name in known["models"]
        }
        listed = {title: list(entries) for title, entries in known.items()}
        return Outcome({**listed, "pairs": grid}, f"{text}\n{matrix(found)}")
    if shards is None:
        raise ConfigurationError("name the folder of --shards; prvr-build-split makes them")

    from prvr.datasets.index import Index
    from prvr.train.config import resolve

    dataset = Index.read(shards, "train").dataset
    config = resolve(options, common.settings, dataset)
    run = out or Path("runs") / f"{dataset}.{config.model}"
    if common.dry_run:
        return Outcome(
            {"run": str(run), "config": config.to_tables()}, f"would train {config.model} on {shards} into {run}"
        )

    from prvr.train.metrics import table
    from prvr.train.run import train

    trained = train(config, shards, run, device=device, allow_overlap=allow_overlap, overwrite=overwrite)
    if os.environ.get("RANK", "0") != "0":  # of several processes under torchrun, one answers
        click.get_current_context().exit()
    result = {
        "run": str(run),
        "epochs": trained.epochs,
        "selected_on": trained.selected_on,
        "best_epoch": trained.best_epoch,
        "metrics": dict(trained.metrics),
        "coverage": trained.coverage,
    }
    text = table({f"{config.model}, {trained.selected_on}": trained.metrics})
    chosen = (
        f"{trained.coverage}; epoch {trained.best_epoch} of {trained.epochs}, chosen on {trained.selected_on}; {run}"
    )
    return Outcome(result, f"{text}\n{chosen}")


@command("prvr-eval", example="prvr-eval runs/holidays --shards data/holidays --split test")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--shards", type=_PLACE, metavar="DIR|URL", help="Folder of prvr-build-split, with shards; or its URL.")
@click.option("--split", default="test", help="Split to rank.")
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--direction",
    type=click.Choice(["t2v", "v2t", "both"]),
    default="t2v",
    help="What is printed: text to video, video to text, or both.",
)
@click.option(
    "--by",
    type=click.Choice(["moment-ratio"]),
    help="Also print groups of queries, by moment length over video length.",
)
@click.option(
    "--save-scores",
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Write scores [Q, V], query_ids and video_ids.",
)
def evaluate(
    common: Common,
    run: Path | None,
    shards: Path | str | None,
    split: str,
    device: str,
    direction: str,
    by: str | None,
    save_scores: Path | None,
) -> Outcome:
    """Rank the videos of a split for each of its queries with the model of RUN, and print the recalls.

    Ties count against the right video; video to text, the best of a video's own queries counts. The whole result, both
    directions, median ranks and groups included, is printed with --json and written to RUN/metrics.json.
    """
    if run is None or shards is None:
        raise ConfigurationError("name a RUN and the folder of --shards")
    if common.dry_run:
        return Outcome({"run": str(run), "split": split}, f"would rank split {split} of {shards} with {run}")

    from prvr.train import run as runs
    from prvr.train.metrics import table

    ranking, result = runs.evaluate(run, shards, split, device=device)
    if save_scores:
        from prvr.train.evaluate import write_scores

        write_scores(save_scores, ranking)
    rows = {f"{run.name}, {split}, {name}": result[name] for name in ("t2v", "v2t") if direction in (name, "both")}
    if by:
        groups = result["by_moment_ratio"].values()
        rows |= {
            f"ratio in {bounds}, {row['queries']} queries": row for group in groups for bounds, row in group.items()
        }
    text = table({**rows, "chance, t2v": result["chance"]})
    return Outcome(result, f"{text}\n{result['coverage']}; epoch chosen on {result['selected_on']}")


@command("prvr-doctor", example="prvr-doctor features/clip.video.zarr")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Split folder: its durations give rows a second, its ids say what is missing.",
)
@click.option(
    "--sample", type=click.IntRange(0), default=200, help="Items whose values are looked at, evenly chosen; 0 for all."
)
@click.option("--list", "list_", is_flag=True, help="List kinds and foreign layouts that it knows, and stop.")
def doctor(common: Common, path: Path | None, against: Path | None, sample: int, list_: bool) -> Outcome:
    """Say what PATH is, and whether it is sound: a feature store, shards, a split, a run, or features of others.

    Every size and hash is checked; values are looked at in a sample. Nothing is written, unpickled or executed.
    Exit code 1 where something is wrong; a note is no reason for that.
    """
    if list_:
        known = {kind: registry.names(package) for kind, package in _DIAGNOSES.items()}
        text = "\n".join(listing(title, entries) for title, entries in known.items())
        return Outcome({title: list(entries) for title, entries in known.items()}, text)
    if path is None:
        raise ConfigurationError("name a PATH: a file or folder to look at")
    if common.dry_run:
        return Outcome({"path": str(path)}, f"would look at {path}")

    from prvr.train.doctor import diagnose

    found = diagnose(path, against=against, sample=sample)
    return Outcome(found.to_json(), found.text(), 0 if found.sound else 1)


@command("prvr-demo", example="prvr-demo --out demo --seed 0")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo"), metavar="DIR", help="Folder for all that it makes."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the corpus and of all training.")
def demo(common: Common, out: Path, seed: int) -> Outcome:
    """Walk the whole road on a generated corpus: draw videos, extract, split, shard, train, evaluate.

    Needs no network and no GPU, and about five minutes on two cores. Its size is changed with --set demo.train=60 and
    the like: train and test (videos), clip_steps, roberta_steps, epochs. Run again, it continues.
    """
    if common.dry_run:
        return Outcome({"out": str(out)}, f"would make the demo in {out}")

    from prvr.manifests.settings import build
    from prvr.train.demo import Demo, Size, report

    size = build(Size, common.settings.get("demo", {}), where="demo")
    result = Demo(out, seed, size, common.forwarded).result()
    return Outcome(result, report(result))


@command("prvr-adopt", example="prvr-adopt model.ckpt --model ms-sl --out runs/tvr.ms-sl --shards shards/tvr")
@click.argument("checkpoint", type=click.Path(path_type=Path), required=False)
@click.option("--model", metavar="NAME", help="Whose checkpoint it is.")
@click.option("--out", type=click.Path(path_type=Path), metavar="RUN", help="Folder of the run.")
@click.option(
    "--shards", type=_PLACE, metavar="DIR|URL", help="Remember the features of these.  [default: their widths alone]"
)
@click.option("--overwrite", is_flag=True, help="Replace the run that is there.")
def adopt(
    common: Common,
    checkpoint: Path | None,
    model: str | None,
    out: Path | None,
    shards: Path | str | None,
    overwrite: bool,
) -> Outcome:
    """Make a run of a CHECKPOINT that a paper's authors have released, so that prvr-eval ranks with it as their code does.

    Its settings are those of its own configuration; MS-SL's branch weights stand in opt.json, to be kept beside it.
    Nothing in the file is executed: what names anything but tensors, numbers and tables is refused.
    """
    if checkpoint is None or model is None or out is None:
        raise ConfigurationError("name a CHECKPOINT, its --model and the folder --out of the run")
    if common.dry_run:
        return Outcome({"run": str(out), "model": model}, f"would make {checkpoint} the run {out}")

    from prvr.train import adopt as adopting

    adopted = adopting.adopt(checkpoint, model, out, shards=shards, settings=common.settings, overwrite=overwrite)
    return Outcome(adopted.to_json(), adopted.text())
