"""The plain side of ``benchmarks/train.py`` computes what the released code does (``golden/prvr``), and ours agrees with it."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prvr.datasets.batch import Batch

FOLDERS = {"ms_sl": "mssl", "gmmformer": "gmmformer", "gmmformer_v2": "gmmformerv2"}
TERMS = {
    "clip_nce": "clip_nce_loss",
    "clip_triplet": "clip_trip_loss",
    "frame_nce": "frame_nce_loss",
    "frame_triplet": "frame_trip_loss",
    "query_diversity": "qdl_loss",
    "matching": "ot_loss",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_plain_scores_and_losses_are_the_released_ones(
    name: str, shared: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    folder = shared / "golden" / "prvr" / FOLDERS[name]
    tensors, info = load_file(folder / "golden.safetensors"), json.loads((folder / "info.json").read_text())
    net: Any = importlib.import_module(f"plain.{name}").Net(64, 48, hidden=32, dropout=0.0)
    net.load_state_dict(load_file(folder / "state_dict.safetensors"), strict=True)

    def batch(kind: str) -> Batch:
        frames, clips = (tensors[f"{kind}_{which}_video_features"] for which in ("frame", "clip"))
        masks = [tensors[f"{kind}_{which}_mask"].bool() for which in ("videos", "text")]
        owner = tensors["trainin_text_labels"]
        return Batch(frames, masks[0], clips, tensors[f"{kind}_text_feat"], masks[1], owner)

    evaluated = batch("evalin")
    captions = json.loads((folder.parent / "ids.json").read_text())["captions"]
    rows = torch.tensor([info["eval_query_order"].index(caption) for caption in captions])
    with torch.no_grad():
        gallery = net.joined([net.gallery(evaluated)])
        clip, frame = net.scores(evaluated.words, evaluated.word_mask.float(), gallery)
    torch.testing.assert_close(clip[rows], tensors["eval_clip"], rtol=0, atol=1e-6)
    torch.testing.assert_close(frame[rows], tensors["eval_frame"], rtol=0, atol=1e-6)
    for kind, hard in (("rand", False), ("hard", True)):
        torch.manual_seed(123)
        for term, loss in net.losses(batch("trainin"), hard).items():
            torch.testing.assert_close(loss, tensors[f"loss_{kind}_{TERMS[term]}"].squeeze(), rtol=1e-5, atol=0)


def test_both_sides_agree(root: Path) -> None:
    """The benchmark itself, on a very small set; it fails where scores or losses differ."""
    small = {"videos": 8, "captions": 16, "batch": 8, "steps": 1, "gallery": 8, "queries": 12, "threads": 1}
    options = [f"--{name}={value}" for name, value in small.items()]
    command = [sys.executable, str(root / "benchmarks" / "train.py"), "--models", "ms-sl", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("scores differ by at most") == 1 and "TOO MUCH" not in run.stdout
