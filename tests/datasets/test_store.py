"""The feature store and its commit protocol."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput

type MakeSpec = Callable[..., FeatureSpec]


def _features(*ids: str, dim: int = 8, mark: str = "made", seed: int = 0) -> list[Features]:
    rng = np.random.default_rng(seed)
    found = []
    for id_ in ids:
        rows = int(rng.integers(1, 40))
        found.append(Features(id_, mark, rng.standard_normal((rows, dim)).astype(np.float32), np.arange(rows) / 3))
    return found


def _equal(store: FeatureStore, features: list[Features]) -> None:
    for one in features:
        np.testing.assert_array_equal(store[one.id], one.frames)
        np.testing.assert_array_equal(store.times(one.id), one.times)


@pytest.fixture
def store(tmp_path: Path, spec: MakeSpec) -> FeatureStore:
    return FeatureStore.create(tmp_path / "x.zarr", spec())


def test_what_is_committed_is_read_by_another_opening(store: FeatureStore) -> None:
    features = _features("a", "b/c", "vidéo")
    store.commit(features[:2])
    store.commit(features[2:])
    again = FeatureStore.open(store.path)
    assert again.ids == ("a", "b/c", "vidéo") and again.missing(["a", "z"]) == ["z"]
    assert again.spec == store.spec
    _equal(again, features)
    assert again.verify() == []


def test_plain_zarr_reads_it_without_a_warning(store: FeatureStore) -> None:
    features = _features("a", "b")
    store.commit(features)
    group: Any = zarr.open_group(store.path, mode="r")
    assert group.attrs["spec"]["backbone"] == "made"
    (name,) = group["parts"].group_keys()
    part = group[f"parts/{name}"]
    assert part.attrs["ids"] == ["a", "b"]
    start, stop = part["offsets"][1:3]
    np.testing.assert_array_equal(part["frames"][start:stop], features[1].frames)


def test_a_store_of_zeros_is_not_a_store_of_lost_chunks(store: FeatureStore) -> None:
    store.commit([Features("a", "made", np.zeros((5, 8), np.float32), np.zeros(5))])
    assert not FeatureStore.open(store.path)["a"].any()


def test_a_lost_chunk_is_an_error_not_zeros(store: FeatureStore) -> None:
    store.commit(_features("a"))
    next(store.path.glob("parts/*/frames/c/0/0")).unlink()
    again = FeatureStore.open(store.path)
    with pytest.raises(CorruptData, match="not found"):
        again["a"]
    assert len(again.verify()) == 1


def test_every_flipped_byte_of_a_chunk_is_found(store: FeatureStore) -> None:
    store.commit([Features("a", "made", np.ones((2, 8), np.float32), np.zeros(2))])
    path = next(store.path.glob("parts/*/frames/c/0/0"))
    good = path.read_bytes()
    for position in range(0, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        path.write_bytes(bad)
        assert FeatureStore.open(store.path).verify(), f"byte {position} of {len(good)}"


def test_another_recipe_is_refused(store: FeatureStore, spec: MakeSpec) -> None:
    with pytest.raises(ConfigurationError, match="recipe_digest"):
        FeatureStore.create(store.path, spec(recipe_digest="2" * 64))
    with pytest.raises(ConfigurationError, match="compute_threads 1, not 2"):
        FeatureStore.create(store.path, spec(compute_threads=2))
    FeatureStore.create(store.path, spec(versions={"torch": "another"}, weights="the same bytes"))


def test_rows_of_another_width_are_refused(store: FeatureStore) -> None:
    with pytest.raises(ValueError, match="9 wide, the store is 8"):
        store.commit(_features("a", dim=9))


def test_an_id_in_two_parts_is_read_once_and_the_later_counts(store: FeatureStore) -> None:
    store.commit(_features("a", "b", seed=0))
    changed = _features("a", mark="changed", seed=5)
    store.commit(changed)
    again = FeatureStore.open(store.path)
    assert again.fingerprint("a") == "changed" and len(again) == 2
    _equal(again, changed)


def test_racing_writers_of_one_part_leave_one(store: FeatureStore) -> None:
    other = FeatureStore.open(store.path)
    store.commit(_features("a"))
    other.commit(_features("a"))
    assert len(list((store.path / "parts").glob("*/zarr.json"))) == 1
    assert list(store.path.parent.iterdir()) == [store.path]


def test_compaction_merges_and_loses_nothing(store: FeatureStore) -> None:
    features = [_features(str(number), seed=number)[0] for number in range(7)]
    for one in features:
        store.commit([one])
    store.compact(bytes_per_part=sum(one.frames.nbytes for one in features) // 2)
    assert 2 <= len(list((store.path / "parts").glob("*/zarr.json"))) <= 3
    again = FeatureStore.open(store.path)
    _equal(again, features)
    assert again.verify() == [] and list(store.path.parent.iterdir()) == [store.path]


def test_what_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="prvr-extract"):
        FeatureStore.open(tmp_path / "absent.zarr")
    zarr.create_group(store=tmp_path / "other.zarr")
    with pytest.raises(CorruptData, match="not of the format"):
        FeatureStore.open(tmp_path / "other.zarr")


_WRITER = """
import sys
from pathlib import Path
import numpy as np
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
path, first = Path(sys.argv[1]), int(sys.argv[2])
spec = FeatureSpec("video", "made", "made", "0", "random:0", "1", 8, "float32", 1, {})
store = FeatureStore.create(path, spec)
print("ready", flush=True)
for number in range(first, 100000):
    rows = np.full((50, 8), number, np.float32)
    store.commit([Features(str(number), "made", rows, np.arange(50.0))])
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_committed(tmp_path: Path) -> None:
    path, said = tmp_path / "x.zarr", 0
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, path, str(said)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        for _ in range(5):
            said = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store = FeatureStore.open(path)
        assert {str(number) for number in range(said + 1)} <= set(store.ids)
        assert store.verify() == []
        for id_ in store.ids:
            assert (store[id_] == float(id_)).all()
    FeatureStore.create(path, store.spec)
    assert list(tmp_path.iterdir()) == [path], "what killed writers left beside the store was not removed"
    shutil.rmtree(path)


def test_attributes_say_what_the_design_says(store: FeatureStore) -> None:
    store.commit(_features("a"))
    head = json.loads(next(store.path.glob("parts/*/zarr.json")).read_text(encoding="utf-8"))["attributes"]
    assert head["ids"] == ["a"] and head["fingerprints"] == ["made"]
    assert set(head["files"]) == {
        *("frames/zarr.json", "frames/c/0/0", "offsets/zarr.json", "offsets/c/0", "times/zarr.json", "times/c/0")
    }
