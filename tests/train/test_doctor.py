"""``prvr-doctor`` from outside: every kind of thing sound, and damaged in every way that we know."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from prvr.datasets.index import Index
from prvr.datasets.ledger import Failure, Ledger
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.manifests.files import read_json, write_json
from prvr.manifests.split import Query, Split, Video
from prvr.train import cli
from prvr.train.diagnoses import Diagnosis, Finding, evenly, spread

type Invoke = Callable[..., Result]
type MakeSpec = Callable[..., FeatureSpec]

# TensorBoard's own protobuf code.
pytestmark = pytest.mark.filterwarnings("ignore:.*PyType_Spec.*:DeprecationWarning")


@pytest.fixture
def look(invoke: Invoke) -> Callable[..., dict[str, Any]]:
    """A function that diagnoses a path, and gives its facts, ``wrong`` and ``notes``, each one text."""

    def diagnose(path: Path, *words: object) -> dict[str, Any]:
        result = invoke(cli.doctor, path, "--json", *words)
        assert result.exit_code in (0, 1), result.output
        found = json.loads(result.stdout.splitlines()[-1])
        assert found["path"] == str(path) and found["sound"] == (result.exit_code == 0)
        texts = {
            severity: "\n".join(one["text"] for one in found["findings"] if one["severity"] == severity)
            for severity in ("wrong", "note")
        }
        assert bool(texts["wrong"]) == (not found["sound"])
        return {**found, "wrong": texts["wrong"], "notes": texts["note"]}

    return diagnose


type LookAt = Callable[..., dict[str, Any]]


def _flip(path: Path, position: int, bit: int = 4) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1 << bit
    path.write_bytes(damaged)


# ---- the command


def test_the_report_is_aligned_and_names_what_is_wrong_first(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    store = Path(shutil.copytree(world.videos, tmp_path / "v.zarr"))
    sound = invoke(cli.doctor, store)
    assert sound.exit_code == 0
    assert sound.stdout.splitlines()[:3] == [
        f"{store}: feature store, sound",
        "  made by        backbone made, recipe made, weights random:0, sha256 111111111111",
        "  videos         20",
    ]
    next(store.glob("parts/*/frames/c/0/0")).unlink()
    broken = invoke(cli.doctor, store)
    assert broken.exit_code == 1 and broken.stdout.startswith(f"{store}: feature store, NOT SOUND\n")
    kinds = [line.split(":")[0] for line in broken.stdout.splitlines() if line.startswith(("wrong: ", "note: "))]
    assert kinds == ["wrong", "wrong", "note"]


def test_a_diagnosis_is_data_that_is_rendered_once() -> None:
    findings = [Finding("note", "odd"), Finding("wrong", "bad")]
    found = Diagnosis(Path("x"), "thing", {"a": 1234, "longer": [{"p": 0.12345}, "q"]}, findings)
    assert found.text() == "x: thing, NOT SOUND\n  a       1,234\n  longer  p 0.1235; q\nwrong: bad\nnote: odd"
    assert found.to_json()["facts"] == {"a": 1234, "longer": [{"p": 0.12345}, "q"]}
    assert Diagnosis(Path("x"), "thing", {}, findings[:1]).sound


def test_samples_are_even_and_keep_their_ends() -> None:
    assert evenly(range(5), 9) == [0, 1, 2, 3, 4]
    assert evenly(range(101), 5) == [0, 25, 50, 75, 100]
    assert spread([3, 1, 2]) == {"min": 1, "median": 2, "max": 3} and spread([1, 2])["median"] == 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, "nothing is there"),
        ("folder", "none of feature store, shards, split, run, features of others (hdf5, mssl, npz, tvr-release)"),
        ("text", "none of feature store"),
    ],
)
def test_what_cannot_be_recognised_is_2(invoke: Invoke, tmp_path: Path, make: str | None, message: str) -> None:
    path = tmp_path / "it"
    if make == "folder":
        path.mkdir()
    elif make:
        path.write_text("text", encoding="utf-8")
    result = invoke(cli.doctor, path)
    assert result.exit_code == 2 and not result.stdout and len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_what_lies_near_is_named(world: Any, invoke: Invoke) -> None:
    folder = world.videos.parent
    assert f"try {world.data} (shards), {world.videos} (feature store)" in invoke(cli.doctor, folder).stderr
    assert f"try {world.data} (shards)" in invoke(cli.doctor, world.data / "train.index.json").stderr


def test_usage(world: Any, invoke: Invoke, tmp_path: Path) -> None:
    assert "name a PATH" in invoke(cli.doctor).stderr and invoke(cli.doctor).exit_code == 2
    assert invoke(cli.doctor, world.data, "--against", tmp_path).exit_code == 2
    assert "would look at" in invoke(cli.doctor, world.data, "--dry-run").stdout
    listed = json.loads(invoke(cli.doctor, "--list", "--json").stdout)
    assert listed["layouts"] == ["hdf5", "mssl", "npz", "tvr-release"] and "store" in listed["kinds"]


def test_help_and_features_of_others_need_no_torch(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float32))
    for word, heavy in (("-h", ("torch", "zarr", "h5py", "numpy")), (str(tmp_path / "a.npy"), ("torch",))):
        script = (
            "import sys, contextlib\nfrom prvr.train.cli import doctor\n"
            f"with contextlib.suppress(SystemExit): doctor.main([{word!r}])\n"
            f"sys.exit(sum(name in sys.modules for name in {heavy}))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0 and done.stdout, done.stderr


# ---- feature stores


def _features(id_: str, rows: int = 6, *, dim: int = 8, mark: str = "made", seed: int = 0) -> Features:
    values = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return Features(id_, mark, values, (np.arange(rows) + 0.5) / 2)


@pytest.fixture
def store(tmp_path: Path, spec: MakeSpec) -> FeatureStore:
    """Two videos in a part, of weights that are not random."""
    store = FeatureStore.create(tmp_path / "x.zarr", spec(weights="made/base"))
    store.commit([_features("a"), _features("b", rows=9, seed=1)])
    return store


def test_a_sound_store(store: FeatureStore, look: LookAt) -> None:
    found = look(store.path)
    assert found["kind"] == "feature store" and found["sound"] and not found["findings"]
    facts = found["facts"]
    assert facts["made by"] == {"backbone": "made", "recipe": "made", "weights": "made/base", "sha256": "1" * 12}
    assert (facts["videos"], facts["width"], facts["dtype"], facts["parts"]) == (2, 8, "float32", 1)
    assert facts["rows"] == {"all": 15, "min": 6, "median": 7.5, "max": 9}
    assert facts["rows a second"] == {"min": 2, "median": 2, "max": 2}
    norms = np.linalg.norm(np.concatenate([store["a"], store["b"]]), axis=1)
    assert facts["norm"] == pytest.approx({"min": norms.min(), "median": np.median(norms), "max": norms.max()})


def test_words_have_no_rate(world: Any, look: LookAt) -> None:
    facts = look(world.words)["facts"]
    assert facts["captions"] == 60 and "rows a second" not in facts


def test_random_weights_are_shouted_and_no_fault(world: Any, look: LookAt) -> None:
    for path in (world.videos, world.data):
        found = look(path)
        assert found["sound"] and "RANDOM weights: made (random:0)" in found["notes"]


@pytest.mark.parametrize("name", ["frames/c/0/0", "times/c/0", "offsets/c/0", "frames/zarr.json"])
@pytest.mark.parametrize("damage", ["flip", "delete", "cut"])
def test_a_damaged_file_of_a_part(store: FeatureStore, look: LookAt, name: str, damage: str) -> None:
    path = next(store.path.glob(f"parts/*/{name}"))
    if damage == "flip":
        _flip(path, len(path.read_bytes()) // 2)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    assert (
        f"{path}: {'absent' if damage == 'delete' else 'changed since it was committed'}" in look(store.path)["wrong"]
    )


def test_rows_that_cannot_be_read_are_counted(store: FeatureStore, look: LookAt) -> None:
    next(store.path.glob("parts/*/frames/c/0/0")).unlink()
    assert "rows that cannot be read, in 2 of 2: a, b" in look(store.path)["wrong"]


@pytest.mark.parametrize("old, new", [('"a"', '"z"'), ("6,", "5,"), ('"made"', '"mede"')])
def test_attributes_that_no_hash_covers(store: FeatureStore, look: LookAt, old: str, new: str) -> None:
    path = next(store.path.glob("parts/*/zarr.json"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert text.count(old) and str(path) in look(store.path)["wrong"]


def test_a_spec_that_was_edited(store: FeatureStore, look: LookAt) -> None:
    head = read_json(store.path / "zarr.json")
    head["attributes"]["spec"]["recipe"] = "better"
    write_json(store.path / "zarr.json", head)
    assert "not the spec, ids and fingerprints that the part was committed with" in look(store.path)["wrong"]


def test_a_part_without_its_mark_and_a_group_without_its_own(store: FeatureStore, look: LookAt) -> None:
    store.commit([_features("c")])
    part = next(path for path in store.path.glob("parts/*/zarr.json"))
    part.unlink()
    assert f"{part.parent}: no zarr.json" in look(store.path)["wrong"]
    (store.path / "parts" / "zarr.json").write_text("{}", encoding="utf-8")
    assert "plain Zarr does not find the parts" in look(store.path)["wrong"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"attributes": {"format": "other/1"}}', '{"attributes": 3}'])
def test_a_store_that_does_not_open(store: FeatureStore, look: LookAt, text: str) -> None:
    (store.path / "zarr.json").write_text(text, encoding="utf-8")
    found = look(store.path)
    assert found["kind"] == "feature store" and str(store.path) in found["wrong"]
    (store.path / "zarr.json").unlink()
    assert "no feature store there" in look(store.path)["wrong"]


def test_values_that_are_no_features(tmp_path: Path, spec: MakeSpec, look: LookAt) -> None:
    store = FeatureStore.create(tmp_path / "x.zarr", spec(weights="made/base"))
    nan, zero, still = (_features(name, seed=3) for name in ("nan", "zero", "still"))
    nan.frames[2, 3], nan.frames[4, 0] = np.nan, np.inf
    zero.frames[1:] = 0
    still.frames[:] = 2
    back = Features("back", "made", _features("back", seed=4).frames, np.array([0, 1, 2, 2, 3, 4.0]))
    store.commit([nan, zero, still, back, Features("twin", "made", back.frames, np.arange(6.0))])
    found = look(store.path)
    assert found["wrong"].splitlines() == [
        "times that do not rise, in 1 of 5: back",
        "rows with NaN or Inf: 2, in 1 of 5: nan",
        "rows of zeros alone: 5, in 1 of 5: zero",
    ]
    assert found["notes"].splitlines() == [
        "rows of one value: 6, in 1 of 5: still",
        "1 of 5 are one row repeated: still",
        "the same rows under several ids: back = twin",
    ]
    assert found["facts"]["repeated rows"] == "9 of 30"


def test_an_id_in_several_parts(store: FeatureStore, look: LookAt) -> None:
    def committed(*features: Features) -> dict[str, Any]:
        FeatureStore.open(store.path).commit(features)
        return look(store.path)

    assert committed(_features("a"), _features("c", seed=2))["notes"] == "1 ids stand in several parts; the last counts"
    changed = committed(_features("b", mark="another source", seed=5))
    assert changed["sound"] and "1 of them had another source before: b" in changed["notes"]
    bits = _features("c", seed=2)
    bits.frames[:] *= np.float32(1 + 1e-6)
    assert committed(bits, _features("d"))["sound"], "the last bits of another machine are no fault"
    assert "1 ids have unequal rows of one source in several parts: a" in committed(_features("a", seed=9))["wrong"]


def test_many_small_parts(store: FeatureStore, look: LookAt) -> None:
    for number in range(20):
        store.commit([_features(str(number), seed=number + 2)])
    assert "21 parts are many for 0 MiB: FeatureStore.compact() merges them" in look(store.path)["notes"]
    store.compact()
    assert not look(store.path)["notes"]


def test_what_lies_beside_a_store(store: FeatureStore, look: LookAt) -> None:
    ledger = Ledger(store.path)
    ledger.record(Failure("a", "a.mp4", "", "failed at first"))
    ledger.record(Failure("lost", "lost.mp4", "", "no such codec"))
    (store.path.parent / "x.partial-00.safetensors").touch()
    host, dead = socket.gethostname(), subprocess.Popen(["true"])
    dead.wait()
    for maker in (f"{host}-{dead.pid}", f"{host}-{os.getpid()}", "another-host-1"):
        (store.path.parent / f".x.zarr.{maker}-0123abcd.tmp").mkdir()
    found = look(store.path)
    assert found["sound"]
    notes = found["notes"]
    assert "1 sources failed" in notes and "lost (no such codec)" in notes and "failed at first" not in notes
    assert "1 files with rows of unfinished videos" in notes
    assert f"{dead.pid}-0123abcd.tmp: left by a writer that died" in notes
    assert f"of process {os.getpid()}, which is at work" in notes
    assert "of a writer on another machine, which may be at work" in notes


def test_an_empty_store_and_one_held_against_a_split(
    tmp_path: Path, spec: MakeSpec, world: Any, store: FeatureStore, look: LookAt
) -> None:
    FeatureStore.create(tmp_path / "empty.zarr", spec())
    assert look(tmp_path / "empty.zarr")["notes"].splitlines()[-1] == "nothing is in it"
    assert "20 of the split's 20 are not in it: train.0, train.1" in look(store.path, "--against", world.data)["notes"]
    assert "not in it" not in look(world.videos, "--against", world.data)["notes"]
    assert "not in it" not in look(world.words, "--against", world.data)["notes"]


def test_values_are_looked_at_in_a_sample(store: FeatureStore, look: LookAt) -> None:
    store.commit([_features(str(number), seed=number) for number in range(298)])
    assert look(store.path)["facts"]["looked into"] == "200 of 300, evenly chosen"
    assert "looked into" not in look(store.path, "--sample", 0)["facts"]


# ---- splits and shards


@pytest.fixture
def data(world: Any, tmp_path: Path) -> Path:
    """A copy of the world's shards."""
    return Path(shutil.copytree(world.data, tmp_path / "data"))


def _without_shards(data: Path) -> None:
    for path in [*data.glob("*.tar"), *data.glob("*.index.json")]:
        path.unlink()


def test_a_sound_split(data: Path, look: LookAt) -> None:
    _without_shards(data)
    found = look(data)
    assert found["kind"] == "split" and found["sound"] and not found["findings"]
    assert found["facts"]["train"] == {"videos": 12, "queries": 36} and found["facts"]["repairs"] == "none"


def test_a_split_that_was_edited(data: Path, look: LookAt) -> None:
    _without_shards(data)
    lines = (data / "test.jsonl").read_text(encoding="utf-8")
    (data / "test.jsonl").write_text(lines.replace("moment 0", "moment 9", 1), encoding="utf-8")
    assert "changed since split.json was written" in look(data)["wrong"]
    (data / "test.jsonl").unlink()
    assert "named in split.json, but absent" in look(data)["wrong"]


def test_a_split_whose_head_does_not_agree(data: Path, look: LookAt) -> None:
    _without_shards(data)
    head = read_json(data / "split.json")
    head["counts"]["train"]["videos"] = 13
    head["digest"] = "0" * 64
    write_json(data / "split.json", head)
    wrong = look(data)["wrong"]
    assert "split.json counts" in wrong and "its digest is not that of its files" in wrong


def test_a_split_with_videos_in_two_splits_and_other_counts_than_published(tmp_path: Path, look: LookAt) -> None:
    one, two, three = (Video(name, 3.0, (Query(f"{name}#0", "text"),)) for name in "abc")
    published = {"train": {"videos": 9, "queries": 9}}
    Split("x", "published", {"train": (one, two), "test": (two,)}, published=published).write(tmp_path / "leak")
    found = look(tmp_path / "leak")
    assert found["wrong"] == "1 videos stand in train and in test: b"
    assert "train: 2 videos and 2 queries, published are {'videos': 9, 'queries': 9}" in found["notes"]
    Split("x", "published", {"train": (one,), "dev": (two,), "test": (two, three)}).write(tmp_path / "shared")
    found = look(tmp_path / "shared")
    assert found["sound"] and "1 videos stand in dev and in test: b" in found["notes"]


def test_sound_shards(world: Any, look: LookAt) -> None:
    found = look(world.data)
    assert found["kind"] == "shards" and found["sound"]
    assert found["facts"]["train"] | {"bytes": 0} == {"videos": 12, "queries": 36, "shards": 1, "bytes": 0}
    assert found["facts"]["video features"][0]["width"] == 8 and found["facts"]["text features"]["width"] == 6


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("flip", "its bytes changed since the index was written"),
        ("cut", "the index says"),
        ("delete", "named in the index, but absent"),
    ],
)
def test_a_damaged_tar(data: Path, look: LookAt, damage: str, message: str) -> None:
    tar = data / "train-000000.tar"
    if damage == "flip":
        _flip(tar, 5000)
    elif damage == "cut":
        tar.write_bytes(tar.read_bytes()[:-512])
    else:
        tar.unlink()
    found = look(data)
    assert str(tar) in found["wrong"] and message in found["wrong"]
    assert "test" in found["facts"], "the other split is judged all the same"


def test_an_index_that_says_other_things_than_its_tar(data: Path, look: LookAt) -> None:
    path = data / "train.index.json"
    index = read_json(path)
    members = index["shards"][0]["members"]
    for values, message in (
        ({"frame_width": 9}, ", 8], where [rows, 9]"),
        ({"word_width": 5}, ", 6], where [rows, 5]"),
    ):
        write_json(path, index | values)
        assert message in look(data)["wrong"]
    members[0]["queries"] = 5
    members[1]["tensors"][1] -= 1
    write_json(path, index)
    wrong = look(data)["wrong"]
    assert "'train.0' with 3 queries, where the index says" in wrong and "not a sample of these shards" in wrong
    for text in ("{", "[]", '{"format": "prvr-shards/2"}', '{"format": "other"}'):
        path.write_text(text, encoding="utf-8")
        assert str(path) in look(data)["wrong"] or "cannot be read" in look(data)["wrong"]


def test_shards_of_another_split_and_of_an_unfinished_one(data: Path, look: LookAt) -> None:
    (data / "train-000007.tar").touch()
    assert "train: 1 tars stand in no index: train-000007.tar" in look(data)["notes"]
    (data / "train.index.json").unlink()
    assert "train: 2 tars without an index: prvr-build-split did not finish them" in look(data)["wrong"]
    for tar in data.glob("train-*.tar"):
        tar.unlink()
    assert "train: a split without shards" in look(data)["notes"]
    (data / "split.json").unlink()
    assert "no split.json beside the shards" in look(data)["notes"]


def test_shards_of_a_split_that_was_made_anew(data: Path, world: Any, look: LookAt) -> None:
    Split("made", "published", {"train": world.split.videos["train"][:3]}).write(data)
    assert look(data)["wrong"].count("stale") == 2


def test_shards_with_a_video_in_train_and_in_test_and_of_other_features(data: Path, look: LookAt) -> None:
    index = Index.read(data, "train")
    write_json(data / "test.index.json", read_json(data / "train.index.json") | {"split": "test"})
    assert f"{len(index.video_ids)} videos stand in train and in test" in look(data)["wrong"]
    other = read_json(data / "test.index.json")
    other["text_features"]["weights_sha256"] = "f" * 64
    write_json(data / "test.index.json", other | {"missing": ["gone"]})
    found = look(data)
    assert "train and test are of other features" in found["wrong"]
    assert "test: 1 videos have no features: gone" in found["notes"]


# ---- runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, world: Any) -> Path:
    """A run of two epochs."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    small = ["--set", "ms-sl.hidden=16", "--batch-size", 4, "--seed", 1, "--threads", 1]
    words = ["--shards", world.data, "--out", folder, "--epochs", 2, *small]
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_sound_run(run: Path, look: LookAt) -> None:
    (run / "scores.npz").touch()
    found = look(run)
    assert found["kind"] == "run" and found["sound"]
    facts = found["facts"]
    assert (facts["model"], facts["epochs"], facts["steps"], facts["log"]) == ("ms-sl", 2, 6, "2 epochs")
    model = load_file(run / "model.safetensors")
    assert facts["parameters"] == sum(tensor.numel() for tensor in model.values())
    metrics = read_json(run / "metrics.json")["test"]["t2v"]
    assert facts["test (chosen on test)"] == {name: round(value, 1) for name, value in metrics.items()}


@pytest.mark.parametrize("name", ["config.toml", "model.safetensors", "metrics.json", "log.jsonl", "state/run.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_file_of_a_run_that_is_something_else(run: Path, look: LookAt, name: str, text: str) -> None:
    if (name, text) in {("config.toml", "[]"), ("config.toml", ""), ("log.jsonl", "")}:
        text = "epochs = 'many'" if name == "config.toml" else "{}\n"
    (run / name).write_text(text, encoding="utf-8")
    found = look(run)
    assert not found["sound"] and found["kind"] == "run"
    # What is damaged does not hide the rest.
    assert name == "config.toml" or found["facts"]["model"] == "ms-sl"


def test_weights_that_are_not_finite_or_of_another_shape(run: Path, look: LookAt) -> None:
    from safetensors import safe_open

    path = run / "model.safetensors"
    weights = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    name = next(iter(weights))
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, path, metadata)
    assert f"NaN or Inf in 1 tensors: {name}" in look(run)["wrong"]
    save_file({key: weights[key] for key in list(weights)[1:]}, path, metadata)
    assert "Missing key" in look(run)["wrong"]
    path.write_bytes(path.read_bytes()[:-8])
    assert str(path) in look(run)["wrong"]


def test_a_run_whose_state_is_damaged(run: Path, look: LookAt) -> None:
    tensors = run / "state" / "epoch-0002-000000.safetensors"
    _flip(tensors, -1)
    assert f"{tensors}: changed since it was written" in look(run)["wrong"]
    tensors.unlink()
    assert f"{tensors}: absent" in look(run)["wrong"]
    tensors.touch()
    (run / "state" / "state.json").unlink()
    assert "without state.json" in look(run)["wrong"]


def test_a_run_that_lost_its_model_or_has_none_yet(run: Path, look: LookAt) -> None:
    (run / "model.safetensors").unlink()
    assert "no model.safetensors, although 2 epochs are done" in look(run)["wrong"]
    for path in (*(run / "state").glob("epoch*"), run / "state" / "state.json", run / "metrics.json"):
        path.unlink()
    (run / "log.jsonl").write_text("", encoding="utf-8")
    found = look(run)
    assert found["sound"] and "no epoch is done yet" in found["notes"] and "training has not ended" in found["notes"]


def test_a_log_with_a_hole(run: Path, look: LookAt) -> None:
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    (run / "log.jsonl").write_text(lines[1] + "\n", encoding="utf-8")
    assert "its epochs are [2]…, not 1 to 1" in look(run)["wrong"]


# ---- features of others


def _rows(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5)
    return unit


def test_the_golden_layouts(shared: Path, look: LookAt) -> None:
    layout = shared / "golden" / "prvr" / "layout" / "gold"
    for path, kind, count in (
        (layout / "FeatureData/i3d", "MS-SL BigFile", {"videos": 12}),
        (layout / "FeatureData/new_clip_vit_32_gold_vid_features.hdf5", "HDF5 features", {"videos": 12}),
        (layout / "TextData/roberta_gold_query_feat.hdf5", "HDF5 features", {"captions": 30}),
        (layout / "TextData/clip_ViT_B_32_gold_query_feat.hdf5", "HDF5 features", {"captions": 30}),
    ):
        found = look(path)
        assert found["kind"] == kind and found["facts"].items() >= count.items()
        # The makers of these files gave one video a frame of zeros, on purpose.
        text = "rows of zeros alone: 1, in 1 of 12: vid04"
        assert found["wrong"] == (text if "videos" in count else "")
    assert look(layout / "FeatureData/i3d")["facts"]["rows"] == {"all": 1169, "min": 5, "median": 82, "max": 300}


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("bmt_women_long_jump_rgb.npy", "likely I3D (Inception), average-pooled"),
        ("bmt_women_long_jump_flow.npy", "likely I3D (Inception), average-pooled"),
        ("bmt_women_long_jump_vggish.npy", "likely VGGish (sound)"),
        ("univtg_vid.npz", "likely CLIP ViT-B/32 or ViT-B/16"),
        ("univtg_txt.npz", "likely CLIP ViT-B/32 or ViT-B/16"),
    ],
)
def test_real_files_are_recognised_by_width_and_sign(shared: Path, look: LookAt, name: str, likely: str) -> None:
    found = look(shared / "data" / "features" / name)
    assert found["sound"] and found["facts"]["looks like"] == likely
    assert found["facts"]["rows a second"].startswith("unknown")


@pytest.mark.parametrize(
    ("rows", "normalised", "likely"),
    [
        (np.abs(_rows(9, 2048)), "no", "likely ResNet-50, -101 or -152, average-pooled"),
        (_unit(np.abs(_rows(9, 1024))), "yes, each row", "likely I3D (Inception), average-pooled"),
        (_unit(_rows(9, 512)).astype(np.float16), "yes, each row", "likely CLIP ViT-B/32 or ViT-B/16"),
        (_rows(9, 768), "no", "likely CLIP ViT-L/14, or RoBERTa-base (words)"),
        (_rows(9, 77), "no", "nothing known"),
    ],
)
def test_a_guess_at_the_backbone(tmp_path: Path, look: LookAt, rows: np.ndarray, normalised: str, likely: str) -> None:
    np.save(tmp_path / "a.npy", rows)
    facts = look(tmp_path / "a.npy")["facts"]
    assert (facts["normalised"], facts["looks like"]) == (normalised, likely)


def test_joined_parts_that_are_each_of_unit_length(tmp_path: Path, look: LookAt) -> None:
    resnet, i3d = _unit(np.abs(_rows(40, 2048))), _unit(np.abs(_rows(40, 1024, seed=1)))
    # As published: where I3D had fewer rows than ResNet, it is padded with zeros. And a column that is always zero.
    i3d[-2:], i3d[:, 0], resnet[:, -1] = 0, 0, 0
    np.save(tmp_path / "a.npy", np.concatenate([_unit(resnet), _unit(i3d)], axis=1))
    facts = look(tmp_path / "a.npy")["facts"]
    assert facts["normalised"] == "yes, each part of a row"
    assert facts["looks like"] == "2048 ++ 1024: likely TVR's ResNet-152 and I3D"
    three = [_unit(_rows(20, width, seed=width)) for width in (512, 768, 30)]
    np.save(tmp_path / "a.npy", np.concatenate(three, axis=1))
    assert look(tmp_path / "a.npy")["facts"]["looks like"].startswith("512 ++ 768 ++ 30: likely several backbones")
    level = _rows(20, 768)
    np.save(tmp_path / "a.npy", level / level.std(axis=1, keepdims=True))
    assert look(tmp_path / "a.npy")["facts"]["normalised"] == "no", "a layer norm is no join of 768 parts"


def test_the_rate_is_known_where_a_split_tells_durations(tmp_path: Path, look: LookAt) -> None:
    queries = (Query("a#enc#0", "text"),)
    Split("x", "published", {"test": (Video("a", 4.0, queries), Video("b", None, ()))}).write(tmp_path / "split")
    np.savez(tmp_path / "x.npz", a=_rows(8, 16), b=_rows(3, 16))
    found = look(tmp_path / "x.npz", "--against", tmp_path / "split")
    assert found["facts"]["rows a second"] == {"min": 2, "median": 2, "max": 2} and not found["notes"]
    np.savez(tmp_path / "x.npz", c=_rows(8, 16))
    found = look(tmp_path / "x.npz", "--against", tmp_path / "split")
    assert found["facts"]["rows a second"].startswith("unknown")
    assert found["notes"] == "2 of the split's 2 are not in it: a, b"


def test_shapes_that_are_no_features(tmp_path: Path, look: LookAt) -> None:
    np.savez(
        tmp_path / "x.npz",
        good=_rows(5, 16), flat=_rows(5, 16)[0], deep=_rows(8, 4).reshape(2, 4, 4), empty=_rows(0, 16),
        wide=_rows(5, 17), names=np.array(["a", "b"]), counts=np.arange(3), more=_rows(4, 16),
    )  # fmt: skip
    found = look(tmp_path / "x.npz")
    assert found["wrong"].splitlines() == [
        "1 arrays have no values: empty [0, 16]",
        "1 arrays have one axis, where rows and width [T, E] belong: flat [16]",
        "1 arrays have more than two axes, where rows and width [T, E] belong: deep [2, 4, 4]",
        "1 arrays are not floating-point numbers: names [2]",
        "1 arrays are not 16 wide, as most are: wide [5, 17]",
    ]
    assert found["notes"] == "1 arrays are integers, so left out: counts" and found["facts"]["videos"] == 3


def test_transposed_arrays(tmp_path: Path, look: LookAt) -> None:
    np.savez(tmp_path / "x.npz", a=_rows(5, 16).T, b=_rows(7, 16).T)
    assert look(tmp_path / "x.npz")["wrong"] == "perhaps transposed: [16, …], where rows and width [T, 16] belong"
    np.savez(tmp_path / "x.npz", a=_rows(50, 512).T)
    found = look(tmp_path / "x.npz")
    assert found["sound"] and "perhaps transposed: [512, …]" in found["notes"]


def test_float64_and_values_that_are_not_finite(tmp_path: Path, look: LookAt) -> None:
    rows = _rows(5000, 3).astype(np.float64)
    rows[[1500, 4999]] = np.nan, np.inf, 1e300
    rows[2000] = 0
    np.save(tmp_path / "a.npy", rows)
    found = look(tmp_path / "a.npy")
    assert found["wrong"] == "rows with NaN or Inf: 2, in 1 of 1: a\nrows of zeros alone: 1, in 1 of 1: a"
    assert found["notes"].startswith("float64")
    np.save(tmp_path / "a.npy", np.full((4, 3), np.nan, np.float32))
    assert "norm" not in look(tmp_path / "a.npy")["facts"]


def test_names_of_strangers_do_not_reach_the_terminal_as_they_are(tmp_path: Path, invoke: Invoke) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["good"] = _rows(2, 4)
        file[b"\xff\x1b[2J"] = _rows(3, 5)
    result = invoke(cli.doctor, tmp_path / "x.h5")
    assert result.exit_code == 1 and "\ufffd\ufffd[2J [3, 5]" in result.stdout and "\x1b" not in result.stdout


def test_damaged_files_of_every_layout(tmp_path: Path, look: LookAt) -> None:
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    assert "needs pickle" in look(objects)["wrong"]
    cut = tmp_path / "cut.h5"
    with h5py.File(cut, "w") as file:
        file["a"] = _rows(300, 8)
    cut.write_bytes(cut.read_bytes()[:-100])
    assert "cut short" in look(cut)["wrong"]
    empty = tmp_path / "empty.h5"
    h5py.File(empty, "w").close()
    assert look(empty)["wrong"] == "nothing is in it"
    big = tmp_path / "big"
    big.mkdir()
    (big / "id.txt").write_text("a_0 a_1", encoding="utf-8")
    (big / "shape.txt").write_text("2 4", encoding="utf-8")
    (big / "feature.bin").write_bytes(bytes(24))
    assert "no video2frames.txt" in look(big)["wrong"]
    (big / "video2frames.txt").write_text("{'a': ['a_0', 'a_1', 'a_2']}", encoding="utf-8")
    assert look(big)["wrong"].splitlines()[:3] == [
        "feature.bin: 24 bytes, where 2 rows of 4 float32 take 32",
        "1 frames of video2frames.txt are not in id.txt: a_2",
        "1 videos have rows past the end of feature.bin: a",
    ]
    (big / "video2frames.txt").write_text("__import__('os')", encoding="utf-8")
    assert "not a dict of lists of names" in look(big)["wrong"]


def test_a_large_file_is_sampled_and_says_so(tmp_path: Path, look: LookAt) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(400):
            file[f"v{number}"] = _rows(2, 4, seed=number)
        file["v250"][:] = np.nan
    found = look(tmp_path / "x.h5", "--sample", 3)
    assert found["sound"] and found["facts"]["looked into"] == "3 of 400, evenly chosen"
    assert found["facts"]["rows"]["all"] == 800
    assert "v250" in look(tmp_path / "x.h5", "--sample", 0)["wrong"]


# ---- anything


def test_no_damage_makes_it_fail_itself(world: Any, trained: Path, look: LookAt, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=_rows(20, 8), b=_rows(3, 8))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", data=_rows(20, 8), chunks=(4, 8), compression="gzip")
    things = [world.videos, world.data, trained, tmp_path / "x.npz", tmp_path / "x.h5"]
    chance = random.Random(0)
    for trial in range(60):
        thing = chance.choice(things)
        copy = tmp_path / f"{trial}" / thing.name
        copy.parent.mkdir()
        if thing.is_dir():
            shutil.copytree(thing, copy, ignore=shutil.ignore_patterns("tensorboard"))
        else:
            shutil.copy(thing, copy)
        files = sorted(path for path in (copy.rglob("*") if copy.is_dir() else [copy]) if path.is_file())
        path = chance.choice(files)
        if chance.random() < 0.5 and path.stat().st_size:
            _flip(path, chance.randrange(path.stat().st_size), chance.randrange(8))
        else:
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])
        look(copy)
