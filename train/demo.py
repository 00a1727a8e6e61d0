"""The whole road on a generated corpus: what ``prvr-demo`` runs. Every step but one is a command that its reader could
type, run as a process of its own; the step between makes the small pretrained models that elsewhere are downloaded.
"""

import logging
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prvr.datasets.store import FeatureStore
from prvr.manifests.errors import PrvrError
from prvr.manifests.files import read_json
from prvr.manifests.split import Split
from prvr.train.metrics import chance, ranks, recalls, table
from prvr.train.tiny import make_clip, make_roberta

SCRIPTS = Path(sys.executable).parent
THREADS = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Size:
    """How large a demo is: videos of each split, steps of the two small models' training, epochs of the retriever's
    (None: the preset's)."""

    train: int = 600
    test: int = 150
    clip_steps: int = 300
    roberta_steps: int = 100
    epochs: int | None = None


@dataclass(frozen=True)
class Demo:
    """Where everything of one demo lies."""

    out: Path
    seed: int
    size: Size
    forwarded: Sequence[str] = ()

    @property
    def corpus(self) -> Path:
        """Videos and annotations."""
        return self.out / "corpus"

    @property
    def shards(self) -> Path:
        """The split and its shards."""
        return self.out / "data"

    @property
    def features(self) -> Path:
        """Feature stores."""
        return self.out / "features"

    @property
    def models(self) -> Path:
        """The small models."""
        return self.out / "models"

    @property
    def run(self) -> Path:
        """The trained retriever."""
        return self.out / "run"

    def commands(self) -> dict[str, list[list[str]]]:
        """The commands before and after the small models are made."""
        shapes = ["prvr-build-split", "shapes", "--annotations", str(self.corpus), "--out", str(self.shards)]
        for key, value in (("seed", self.seed), ("train", self.size.train), ("test", self.size.test)):
            shapes += ["--set", f"shapes.{key}={value}"]
        clip, roberta = self.models / "clip", self.models / "roberta"
        extract = ["prvr-extract", "--out", str(self.features)]
        train = f"prvr-train --model ms-sl --seed {self.seed} --threads {THREADS}".split()
        train += ["--shards", str(self.shards), "--out", str(self.run)]
        if self.size.epochs is not None:
            train += ["--epochs", str(self.size.epochs)]
        return {
            "before": [shapes],
            "after": [
                [*extract, str(self.corpus / "videos"), "--backbone", "clip", "--weights", str(clip)],
                [
                    *extract,
                    *(str(self.shards), "--backbone", "roberta", "--backbone", "clip"),
                    *("--weights", f"roberta={roberta}", "--weights", f"clip={clip}"),
                ],
                [
                    *shapes,
                    *("--video-features", str(self.features / "clip.video.zarr")),
                    *("--text-features", str(self.features / "shapes.roberta.text.zarr")),
                ],
                train,
                ["prvr-eval", str(self.run), "--shards", str(self.shards), "--split", "test"],
            ],
        }

    def result(self) -> dict[str, Any]:
        """Run it all; what is there already is not made again.

        Raises:
            PrvrError: a command failed.
        """
        commands = self.commands()
        for command in commands["before"]:
            self._run(command)
        self._make_models()
        for command in commands["after"]:
            self._run(command)
        test = read_json(self.run / "metrics.json")["test"]
        return {
            "metrics": test["t2v"],
            "chance": chance(test["videos"]),
            "zero_shot": self.zero_shot(),
            "queries": test["queries"],
            "videos": test["videos"],
            "selected_on": test["selected_on"],
            "run": str(self.run),
            "shards": str(self.shards),
        }

    def zero_shot(self) -> dict[str, float]:
        """Recalls of the small CLIP alone on the test split: a video scores by its best frame's cosine with the sentence."""
        videos = FeatureStore.open(self.features / "clip.video.zarr")
        sentences = FeatureStore.open(self.features / "shapes.clip.text.zarr")
        test = Split.read(self.shards).videos["test"]
        queries = np.concatenate([_unit(sentences[query.query_id]) for video in test for query in video.queries])
        scores = np.stack([(queries @ _unit(videos[video.video_id]).T).max(axis=1) for video in test], axis=1)
        owner = torch.tensor([row for row, video in enumerate(test) for _ in video.queries])
        return recalls(ranks(torch.from_numpy(scores), owner))

    def _make_models(self) -> None:
        # One thread: as fast for models of this size, the same numbers on every machine, and steady on a busy one.
        torch.set_num_threads(THREADS)
        if not (self.models / "clip").is_dir():
            _say(f"# into {self.models / 'clip'}: a tiny CLIP, trained on stills and captions of the training split")
            make_clip(self.corpus, self.models / "clip", steps=self.size.clip_steps, seed=self.seed)
        if not (self.models / "roberta").is_dir():
            _say(f"# into {self.models / 'roberta'}: a tiny RoBERTa, trained on captions of the training split")
            captions = [query.text for video in Split.read(self.shards).videos["train"] for query in video.queries]
            make_roberta(captions, self.models / "roberta", seed=self.seed, steps=self.size.roberta_steps)

    def _run(self, words: Sequence[str]) -> None:
        _say(f"$ {shlex.join(words)}")
        # Their stdout is a result of theirs, not of ours: it goes where the reader looks, to stderr.
        command = [str(SCRIPTS / words[0]), *words[1:], *self.forwarded]
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if code < 0 or code == 130:
            raise KeyboardInterrupt
        if code:
            raise PrvrError(f"{words[0]} ended with exit code {code}; the same prvr-demo command continues there")


def report(result: dict[str, Any]) -> str:
    """The table, where its numbers come from, and how to go on with one's own videos."""
    rows = {"chance": result["chance"], "small CLIP, best frame": result["zero_shot"], "ms-sl": result["metrics"]}
    return f"""
{table(rows)}

{result["queries"]} queries, {result["videos"]} test videos. The epoch of ms-sl was chosen on the split {result["selected_on"]}.
Weights: the CLIP and the RoBERTa were made by this demo, of the training split's stills and captions alone.
Run: {result["run"]}; shards: {result["shards"]}

The same road with your own folder videos/, and captions.jsonl with lines of video_id (the file's stem) and text:

  prvr-build-split mine --captions captions.jsonl
  prvr-extract videos/ --backbone clip
  prvr-extract data/mine --backbone roberta
  prvr-build-split mine --captions captions.jsonl --video-features features/clip.video.zarr \\
      --text-features features/mine.roberta.text.zarr
  prvr-train --shards data/mine --out runs/mine
"""


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _say(line: str) -> None:
    print(f"\n{line}", file=sys.stderr, flush=True)
