"""What each model, and each row of Ren et al.'s ablations, reaches on the generated corpus: mean and spread over seeds.

    .venv/bin/python benchmarks/shapes.py --folder shapes [--seeds 0 1 2] [--jobs 2] [--rows PART …]

The corpus, the tiny CLIP and RoBERTa, the features and shards are made as ``prvr-demo`` makes them, once, from seed 0: 600
videos to train on, 150 that choose the epoch (dev) and 400 to rank (test), so that R@100 is not given away as it is among the
demo's 150. A seed is of the training alone: weights, order, dropout. Every run is the commands ``prvr-train`` and ``prvr-eval``,
with the same settings for all rows of one base. Run again, it goes on where it was stopped: a run is trained once for its
settings, and its folder's name has their digest. The table goes to stdout, in Markdown.

A spread is the standard deviation over seeds (n - 1). A difference is to the first row of its
table, seed by seed.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from prvr.manifests.split import Split
from prvr.train.demo import SCRIPTS, Demo, Size
from prvr.train.metrics import chance
from prvr.train.tiny import make_clip, make_roberta

VIDEOS = {"train": 600, "dev": 150, "test": 400}
CORPUS_SEED = 0
COMMON = {"epochs": "12", "batch-size": "16", "lr": "8e-4", "optim.warmup": "0.1"}
HARD = "ranking.hard_from_epoch"
BASES: Mapping[str, Mapping[str, str]] = {
    "ms-sl": {"ms-sl.hidden": "96", HARD: "3"},
    "gmmformer": {"gmmformer.hidden": "96", HARD: "3"},
    "gmmformer-v2": {"gmmformer-v2.hidden": "96", HARD: "3"},
    "dual-branch": {"epochs": "16", "lr": "3e-4", "dual-branch.hidden": "96", HARD: "8"},
    "amdnet": {"amdnet.hidden": "96"},
}
"""Settings of each base, and of all rows that are built on it; tried on seed 0 and dev, for convergence alone.

dual-branch with TCP does not leave chance at the rate of the others, or where negatives are hard before it has learnt to rank.
"""
CONTRASTS = ("ice", "irm")
"""Objectives with a hard-negative schedule of their own: that of the base."""
SENTENCES = ("amdnet",)
"""Bases that read a sentence's vector, as published: the tiny CLIP's. The others read RoBERTa's words."""
METRICS = ("R@1", "R@5", "R@10", "R@100", "SumR")
ABLATIONS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Table 3: which objectives": {
        "dual-branch": {},
        "dual-branch+ice": {},
        "dual-branch+irm": {},
        "dual-branch+tcp": {},
        "dual-branch+irm+tcp": {},
        "dual-branch+ice+tcp": {},
        "dual-branch+ice+irm": {},
        "dual-branch+ice+irm+tcp": {},
    },
    "Table 4: which losses of IRM": {
        "dual-branch+ice+tcp": {},
        "dual-branch+ice+irm+tcp, L_neg alone": {"irm.red": "0"},
        "dual-branch+ice+irm+tcp, L_red alone": {"irm.neg": "0"},
        "dual-branch+ice+irm+tcp": {},
    },
    "No table of theirs: TCP with a tenth of its published weight": {
        "dual-branch": {},
        "dual-branch+tcp, weight 0.1": {"tcp.weight": "0.1"},
        "dual-branch+ice+irm+tcp, weight 0.1": {"tcp.weight": "0.1"},
    },
}


@dataclass(frozen=True)
class Row:
    """A model, as it is spelled, with settings beside those of its base."""

    name: str
    settings: Mapping[str, str]

    @property
    def model(self) -> str:
        """What ``--model`` gets."""
        return self.name.split(",")[0]

    @property
    def base(self) -> str:
        """The model alone."""
        return self.model.split("+")[0]

    def options(self, seed: int) -> list[str]:
        """Of ``prvr-train``."""
        words = ["--model", self.model, "--seed", str(seed), "--threads", "1", "--device", "cpu"]
        own = BASES[self.base]
        hard = {f"{name}.contrast.hard_from_epoch": own[HARD] for name in CONTRASTS if name in self.model.split("+")}
        for name, value in {**COMMON, **own, **hard, **self.settings}.items():
            words += ["--set", f"{name}={value}"] if "." in name else [f"--{name}", value]
        return words


def prepare(demo: Demo) -> None:
    """Draw, pretrain, extract, shard, as the demo does; what is there is not made again."""
    shapes = ["prvr-build-split", "shapes", "--annotations", str(demo.corpus)]
    for key, value in {"seed": CORPUS_SEED, **VIDEOS}.items():
        shapes += ["--set", f"shapes.{key}={value}"]
    clip, roberta = demo.models / "clip", demo.models / "roberta"
    extract = ["prvr-extract", "--out", str(demo.features)]
    _do([*shapes, "--out", str(demo.shards)])
    torch.set_num_threads(1)
    if not clip.is_dir():
        make_clip(demo.corpus, clip, steps=demo.size.clip_steps, seed=CORPUS_SEED)
    if not roberta.is_dir():
        captions = [query.text for video in Split.read(demo.shards).videos["train"] for query in video.queries]
        make_roberta(captions, roberta, steps=demo.size.roberta_steps, seed=CORPUS_SEED)
    _do([*extract, str(demo.corpus / "videos"), "--backbone", "clip", "--weights", str(clip)])
    weights = ["--weights", f"roberta={roberta}", "--weights", f"clip={clip}"]
    _do([*extract, str(demo.shards), "--backbone", "roberta", "--backbone", "clip", *weights])
    for text, out in {"roberta": demo.shards, "clip": _sentences(demo)}.items():
        stores = ["--video-features", str(demo.features / "clip.video.zarr")]
        stores += ["--text-features", str(demo.features / f"shapes.{text}.text.zarr")]
        _do([*shapes, "--out", str(out), *stores])


def _sentences(demo: Demo) -> Path:
    return demo.out / "data-sentences"


def trained(demo: Demo, row: Row, seed: int) -> dict[str, float]:
    """The recalls of one run on the test split; trained if it was not."""
    options = row.options(seed)
    digest = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:8]
    run = demo.out / "runs" / f"{row.name.replace(', ', '-').replace(' ', '-')}-seed{seed}-{digest}"
    metrics = run / "metrics.json"
    shards = ["--shards", str(_sentences(demo) if row.base in SENTENCES else demo.shards)]
    if not metrics.exists() or "test" not in json.loads(metrics.read_text()):
        _do(["prvr-train", *shards, "--out", str(run), *options])
        _do(["prvr-eval", str(run), *shards, "--split", "test", "--device", "cpu"])
    found: dict[str, float] = json.loads(metrics.read_text())["test"]["t2v"]
    print(f"{run.name}: " + ", ".join(f"{name} {found[name]:.1f}" for name in METRICS), file=sys.stderr, flush=True)
    return found


def _do(words: Sequence[str]) -> None:
    """Run one of our commands, with one thread; it ends this program where it fails."""
    command = [str(SCRIPTS / words[0]), *words[1:], "-q"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with exit code {done.returncode}: {done.stderr[-2000:]}")


def _spread(values: Sequence[float], form: str = ".1f") -> str:
    return f"{mean(values):{form}} ± {stdev(values):.1f}" if len(values) > 1 else f"{mean(values):{form}}"


def table(results: Mapping[str, Sequence[Mapping[str, float]]], against: str | None = None) -> str:
    """Markdown, a row each: recalls of its seeds, and what it gains over the row ``against``, seed by seed."""
    columns = ["", *METRICS, *(["ΔR@1", "ΔSumR"] if against else [])]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, seeds in results.items():
        cells = [_spread([one[metric] for one in seeds]) for metric in METRICS]
        if against and name != against:
            for metric in ("R@1", "SumR"):
                gains = [one[metric] - base[metric] for one, base in zip(seeds, results[against], strict=True)]
                cells.append(_spread(gains, "+.1f"))
        elif against:
            cells += ["", ""]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("shapes"), help="where everything lies, some 200 MB")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    parser.add_argument("--rows", nargs="+", default=[""], metavar="PART", help="rows whose name has one of these")
    options = parser.parse_args()
    demo = Demo(options.folder, CORPUS_SEED, Size())
    prepare(demo)
    groups = [{name: {} for name in BASES}, *ABLATIONS.values()]
    rows = [Row(name, given) for group in groups for name, given in group.items()]
    wanted = {row.name: row for row in rows if any(part in row.name for part in options.rows)}
    with ThreadPoolExecutor(options.jobs) as pool:
        # Seed by seed, so that what is stopped early has whole seeds.
        jobs = [pool.submit(trained, demo, row, seed) for seed in options.seeds for row in wanted.values()]
        found = [job.result() for job in jobs]
    results = {name: found[number :: len(wanted)] for number, name in enumerate(wanted)}
    print(f"{len(options.seeds)} seeds: {', '.join(map(str, options.seeds))}; {VIDEOS['test']} test videos\n")
    yardsticks = {"chance": [chance(VIDEOS["test"])], "small CLIP, best frame": [demo.zero_shot()]}
    print(table(yardsticks | {name: results[name] for name in BASES if name in results}))
    for title, group in ABLATIONS.items():
        chosen = {name: results[name] for name in group if name in results}
        if len(chosen) > 1:
            print(f"\n{title}\n\n{table(chosen, next(iter(chosen)))}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{used.ru_utime + used.ru_stime:.0f} CPU s of runs in this call", file=sys.stderr)


if __name__ == "__main__":
    main()
