"""``prvr-build-split``: subsets, what is available, galleries, published counts, and what becomes of them downstream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from prvr.datasets.cli import main
from prvr.datasets.index import Index
from prvr.manifests.split import Split
from prvr.train.cli import evaluate
from prvr.train.cli import main as train

type Invoke = Callable[..., Result]
LINES = [{"video_id": f"v{n}", "text": f"scene {n}", "split": "train" if n < 6 else "test"} for n in range(9)]


def _json(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    path = tmp_path / "captions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return path


def test_what_is_available_is_a_subset_of_its_own(invoke: Invoke, captions: Path, tmp_path: Path) -> None:
    (tmp_path / "have.txt").write_text("v0\nv1\nv7\nelsewhere\n", encoding="utf-8")
    out = ("--captions", captions, "--json", "--out")
    whole = _json(invoke(main, "mine", *out, tmp_path / "whole"))
    part = _json(invoke(main, "mine", "--available", tmp_path / "have.txt", *out, tmp_path / "part"))
    assert whole["subset"] == "" and whole["left_out"] == {}
    assert part["splits"] == {"train": {"videos": 2, "queries": 2}, "test": {"videos": 1, "queries": 1}}
    assert part["subset"] == "available in have.txt"
    assert part["left_out"] == {"train": {"videos": 4, "queries": 4}, "test": {"videos": 2, "queries": 2}}
    read = [Split.read(tmp_path / name) for name in ("whole", "part")]
    assert read[0].digest() != read[1].digest() and read[1].left_out == part["left_out"]
    told = invoke(main, "mine", "--available", tmp_path / "have.txt", *out[:2], "--out", tmp_path / "part")
    assert "left out of train: 4 videos, 4 queries" in told.stdout
    (tmp_path / "none.txt").write_text("elsewhere\n", encoding="utf-8")
    none = invoke(main, "mine", "--available", tmp_path / "none.txt", *out, tmp_path / "none")
    assert none.exit_code == 2 and "none of the videos of mine is there" in none.stderr


def test_the_rest_of_the_road_says_what_it_speaks_of(
    invoke: Invoke, world: Any, tmp_path: Path, captions: Path
) -> None:
    """Videos without features stay in the split; scores say how much of it they cover."""
    lines = [
        {"video_id": video.video_id, "text": query.text, "query_id": query.query_id, "split": name}
        for name, videos in world.split.videos.items()
        for video in videos
        for query in video.queries
    ]
    lines += [{"video_id": f"lost.{n}", "text": "gone", "split": "test"} for n in range(4)]
    captions.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    words = ("mine", "--captions", captions, "--out", tmp_path / "data", "--json")
    features = ("--video-features", world.videos, "--text-features", world.words)
    built = invoke(main, *words, *features)
    assert _json(built)["missing"] == [f"lost.{n}" for n in range(4)]
    assert f"{world.videos} lacks 4 videos of the split" in built.stderr and "lost.0" in built.stderr
    trained = _json(
        invoke(train, "--shards", tmp_path / "data", "--out", tmp_path / "run", "--epochs", 1, "--json", "--set",
               "ms-sl.hidden=8")
    )  # fmt: skip
    assert trained["coverage"] == "8 videos and 24 queries of 12 videos and 28 queries"
    told = invoke(evaluate, tmp_path / "run", "--shards", tmp_path / "data")
    assert "8 videos and 24 queries of 12 videos and 28 queries" in told.stdout
    assert "8 videos and 24 queries of 12" in (tmp_path / "run" / "card.md").read_text(encoding="utf-8")


def test_a_gallery_is_built_and_not_ranked(invoke: Invoke, world: Any, tmp_path: Path) -> None:
    built = _json(
        invoke(main, "mine", "--gallery", world.videos, "--video-features", world.videos, "--out", tmp_path / "g",
               "--json")
    )  # fmt: skip
    assert built["splits"] == {"test": {"videos": 20, "queries": 0}} and built["shards"]["test"]["videos"] == 20
    assert Index.read(tmp_path / "g", "test").text_features is None
    _json(
        invoke(train, "--shards", world.data, "--out", tmp_path / "run", "--epochs", 1, "--json", "--set",
               "ms-sl.hidden=8")
    )  # fmt: skip
    ranked = invoke(evaluate, tmp_path / "run", "--shards", tmp_path / "g")
    assert ranked.exit_code == 2 and "no queries to rank" in ranked.stderr


def test_only_one_split(invoke: Invoke, tmp_path: Path) -> None:
    words = ("shapes", "--annotations", tmp_path / "a", "--set", "shapes.train=2", "--set", "shapes.test=2", "--json")
    built = _json(invoke(main, *words, "--split", "test", "--out", tmp_path / "data"))
    assert list(built["splits"]) == ["test"] and built["splits"]["test"]["videos"] == 2


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["mine", "--captions", "x", "--gallery", "y"], "not both"),
        (["mine", "--captions", "x", "--subset", "mssl"], "no published subsets"),
        (["shapes", "--subset", "round"], "unknown subset of shapes 'round'"),
        (["shapes", "--text-features", "x"], "need --video-features"),
        ([], "name a DATASET"),
    ],
)
def test_what_cannot_start(invoke: Invoke, words: list[str], what: str, tmp_path: Path) -> None:
    done = invoke(main, *words, "--out", tmp_path / "data")
    assert done.exit_code == 2 and what in done.stderr
    assert not (tmp_path / "data").exists()


def test_other_counts_than_published(invoke: Invoke, shared: Path, tmp_path: Path) -> None:
    files = {"train.json": "activitynet/train.json", "val_1.json": "activitynet/val_1.json"}
    for name, target in files.items():
        (tmp_path / name).symlink_to(shared / "data" / "annotations" / target)
    words = (main, "activitynet", "--annotations", tmp_path, "--out", tmp_path / "data")
    whole = invoke(*words, "--json", "--strict")
    assert _json(whole)["differences"] == []
    ids = shared / "data" / "annotations" / "mssl_style" / "activitynet_mssl_test_video_ids_4430.txt"
    (tmp_path / "mssl.test.txt").symlink_to(ids)
    subset = invoke(*words, "--subset", "mssl")
    # Its training split has no list here: a known reason, which --strict does not take.
    assert subset.exit_code == 0 and "train videos   10,009      9,043  no list" in subset.stdout
    assert invoke(*words, "--subset", "mssl", "--strict").exit_code == 1
    (tmp_path / "val_1.json").unlink()
    (tmp_path / "val_1.json").write_text('{"v_a": {"duration": 3, "timestamps": [[0, 1]], "sentences": ["x"]}}')
    unexplained = invoke(*words)
    assert unexplained.exit_code == 1 and "test videos       1      4,917  not explained" in unexplained.stdout
    assert Split.read(tmp_path / "data").published["test"] == {"videos": 4917, "queries": 17505}


def test_subsets_are_listed(invoke: Invoke) -> None:
    assert _json(invoke(main, "shapes", "--list", "--json")) == {"dataset": "shapes", "subsets": {}}
