"""Shards: what plain WebDataset reads, what is refused, what is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import webdataset

from prvr.datasets.build import build
from prvr.datasets.index import Index
from prvr.datasets.pool import to_clips
from prvr.datasets.sample import decode, encode, key_of
from prvr.datasets.shards import Form, make_sample, write_shards
from prvr.datasets.source import Raw, StoreSource
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.datasets.stream import ShardReader
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput
from prvr.manifests.split import Query, Split, Video

# Plain WebDataset leaves its files to the garbage collector.
LEAKS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
IDS = ["v_a.b", "v_a.c", "../x", "/abs", "-4wsuPCjDBc_5_15", "vidéo", "vide\u0301o", "x" * 300, "%41", "A", "a b"]


@LEAKS
def test_plain_webdataset_reads_every_video(world: Any) -> None:
    stores = FeatureStore.open(world.videos), FeatureStore.open(world.words)
    urls = [str(path) for path in sorted(world.data.glob("train-*.tar"))]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert [json.loads(sample["json"])["video_id"] for sample in samples] == [
        v.video_id for v in world.split.videos["train"]
    ]
    for sample in samples:
        tensors, line = safetensors.numpy.load(sample["safetensors"]), json.loads(sample["json"])
        steps, times = stores[0][line["video_id"]], stores[0].times(line["video_id"])
        np.testing.assert_array_equal(tensors["frames"], steps)
        np.testing.assert_array_equal(tensors["clips"], to_clips(steps, times).values)
        assert tensors["clip_times"].shape == (32, 2) and tensors["frame_times"].shape == (len(steps), 2)
        words = np.concatenate([stores[1][query["query_id"]] for query in line["queries"]])
        np.testing.assert_array_equal(tensors["words"], words)
        assert tensors["word_counts"].tolist() == [len(stores[1][query["query_id"]]) for query in line["queries"]]
        assert line["times"] == "seconds"


def test_the_reader_gives_what_webdataset_gives(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        assert len(reader) == 12
        store = FeatureStore.open(world.videos)
        for position, video in enumerate(world.split.videos["train"]):
            sample = reader[position]
            assert sample.video == video
            np.testing.assert_array_equal(sample.frames, store[video.video_id])


@LEAKS
def test_any_id_goes_there_and_back(tmp_path: Path, spec: Callable[..., FeatureSpec]) -> None:
    videos = tuple(Video(id_, None, (Query(f"{id_}#0", "text"),)) for id_ in IDS)
    split = Split("made", "published", {"train": videos})
    FeatureStore.create(tmp_path / "v.zarr", spec()).commit(
        [Features(id_, "m", np.full((2, 8), row, np.float32), np.arange(2.0)) for row, id_ in enumerate(IDS)]
    )
    mark = videos[0].queries[0].fingerprint()
    FeatureStore.create(tmp_path / "w.zarr", spec("text")).commit(
        [Features(f"{id_}#0", mark, np.ones((1, 8), np.float32), np.zeros(1)) for id_ in IDS]
    )
    build(split, tmp_path / "data", StoreSource([tmp_path / "v.zarr"], tmp_path / "w.zarr"))
    samples = list(webdataset.WebDataset(str(tmp_path / "data" / "train-000000.tar"), shardshuffle=False))
    assert [json.loads(sample["json"])["video_id"] for sample in samples] == IDS
    with ShardReader(tmp_path / "data", "train") as reader:
        assert [float(reader[row].frames[0, 0]) for row in range(len(IDS))] == list(range(len(IDS)))


def test_keys_are_plain_and_differ() -> None:
    keys = [key_of(id_) for id_ in IDS]
    assert len(set(keys)) == len(IDS)
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_%") for key in keys)


def test_small_shards_hold_the_same(world: Any, tmp_path: Path) -> None:
    source = StoreSource([world.videos], world.words)
    index = write_shards(tmp_path, world.split, "train", source, Form(shard_bytes=8000))
    assert len(index.shards) > 3
    with ShardReader(tmp_path, "train") as small, ShardReader(world.data, "train") as large:
        assert small.index.video_ids == large.index.video_ids
        for position in range(len(large)):
            np.testing.assert_array_equal(small[position].clips, large[position].clips)


def test_equal_inputs_are_not_written_again_and_other_ones_are(world: Any, tmp_path: Path) -> None:
    shutil.copytree(world.data, tmp_path / "data")
    shard = tmp_path / "data" / "train-000000.tar"
    before = shard.stat().st_mtime_ns
    build(world.split, tmp_path / "data", StoreSource([world.videos], world.words))
    assert shard.stat().st_mtime_ns == before
    half = Split("made", "published", {name: videos[:2] for name, videos in world.split.videos.items()})
    build(half, tmp_path / "data", StoreSource([world.videos], world.words))
    assert Index.read(tmp_path / "data", "train").video_ids == ("train.0", "train.1")


def test_videos_without_features_are_missing_not_an_error(world: Any, tmp_path: Path) -> None:
    more = (*world.split.videos["test"], Video("lost", 3.0, ()))
    split = Split("made", "published", {**world.split.videos, "test": more})
    built = build(split, tmp_path, StoreSource([world.videos], world.words))
    assert built.to_json()["missing"] == ["lost"]
    assert Split.read(tmp_path).missing == ("lost",)
    assert Index.read(tmp_path, "test").missing == ("lost",) and len(Index.read(tmp_path, "test").video_ids) == 8


def test_several_stores_are_normalised_and_joined(world: Any, tmp_path: Path, spec: Callable[..., FeatureSpec]) -> None:
    first = FeatureStore.open(world.videos)
    second = FeatureStore.create(tmp_path / "b.zarr", spec("video", 3, backbone="other"))
    second.commit(
        [Features(id_, "m", np.full((len(first[id_]), 3), 2.0, np.float32), first.times(id_)) for id_ in first.ids]
    )
    build(world.split, tmp_path / "data", StoreSource([world.videos, second.path], world.words))
    with ShardReader(tmp_path / "data", "train") as reader:
        frames, raw = reader[0].frames, first["train.0"]
    np.testing.assert_allclose(frames[:, :8], raw / (np.linalg.norm(raw, axis=1, keepdims=True) + 1e-5), rtol=1e-5)
    np.testing.assert_allclose(frames[:, 8:], 1 / np.sqrt(3), rtol=1e-4)


def test_rows_at_other_times_are_put_on_the_first_clock(
    world: Any, tmp_path: Path, spec: Callable[..., FeatureSpec]
) -> None:
    first = FeatureStore.open(world.videos)
    second = FeatureStore.create(tmp_path / "b.zarr", spec("video", 3, recipe="slow"))
    # One video stands at the clock's times, the others at six rows a second: two in each step of the clock.
    rows = []
    for id_ in first.ids:
        times = first.times(id_)
        own = times if id_ == "train.1" else (np.arange(2 * len(times)) + 0.5) / 6
        rows.append(Features(id_, "m", np.stack([own, own, own], axis=1).astype(np.float32) + 1, own))
    second.commit(rows)
    built = build(world.split, tmp_path / "data", StoreSource([world.videos, second.path], world.words))
    joined = Index.read(tmp_path / "data", "train").joined
    assert joined == built.indexes["train"].joined
    assert joined["clock"] == "made" and joined["normalised"] == "each"
    assert joined["aligned"] == {"slow": {"videos": 11, "seconds away at most": 0.083}}
    with ShardReader(tmp_path / "data", "train") as reader:
        assert all(reader[row].frames.shape[1] == 11 for row in range(len(reader)))
        # Equal in all three columns, so normalised: the mean of two rows is the clock's own time, whatever the scale.
        np.testing.assert_allclose(reader[0].frames[:, 8:], 1 / np.sqrt(3), rtol=1e-4)


def test_captions_of_another_split_are_refused(world: Any, tmp_path: Path) -> None:
    changed = [
        Video(video.video_id, video.duration, tuple(Query(query.query_id, "another text") for query in video.queries))
        for video in world.split.videos["train"]
    ]
    with pytest.raises(ConfigurationError, match="another text"):
        build(Split("made", "published", {"train": tuple(changed)}), tmp_path, StoreSource([world.videos], world.words))
    extra = Video("train.0", None, (Query("unheard", "of"),))
    with pytest.raises(ConfigurationError, match="'unheard'"):
        build(Split("made", "published", {"train": (extra,)}), tmp_path, StoreSource([world.videos], world.words))


def test_stores_of_the_wrong_stream_or_of_none_of_the_videos(world: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="text features, where video"):
        build(world.split, tmp_path, StoreSource([world.words], world.words))
    with pytest.raises(ConfigurationError, match="need --text-features"):
        build(world.split, tmp_path, StoreSource([world.videos]))
    strangers = Split("made", "published", {"train": (Video("z", None, ()),)})
    with pytest.raises(ConfigurationError, match="none of the 1 videos"):
        build(strangers, tmp_path, StoreSource([world.videos], world.words))


def test_a_gallery_needs_no_words(world: Any, tmp_path: Path) -> None:
    silent = tuple(Video(video.video_id, None, ()) for video in world.split.videos["test"])
    built = build(Split("mine", "published", {"test": silent}), tmp_path, StoreSource([world.videos]))
    assert built.indexes["test"].text_features is None and built.indexes["test"].word_width == 0
    with ShardReader(tmp_path, "test") as reader:
        assert len(reader) == 8 and reader[0].words == ()


@pytest.mark.parametrize("keep", [True, False])
def test_raw_steps_are_kept_on_request_where_frames_are_not_they(keep: bool) -> None:
    long, short = np.random.default_rng(0).standard_normal((2, 200, 4)).astype(np.float32)
    times = np.arange(200) * 0.5
    form = Form(keep_steps=keep)
    sample = decode(*encode(make_sample(Video("long", None, ()), Raw(long, times, ()), form)))
    assert len(sample.frames) == 128
    if keep:
        assert sample.steps is not None and sample.step_times is not None
        np.testing.assert_array_equal(sample.steps, long)
        np.testing.assert_array_equal(sample.step_times, times)
    else:
        assert sample.steps is None
    sample = decode(*encode(make_sample(Video("short", None, ()), Raw(short[:128], times[:128], ()), form)))
    assert sample.steps is None
    np.testing.assert_array_equal(sample.frames, short[:128])


def test_a_source_without_times_gives_fractions() -> None:
    sample = decode(*encode(make_sample(Video("v", 60.0, ()), Raw(np.ones((40, 2)), None, ()), Form())))
    assert sample.times == "fractions"
    np.testing.assert_allclose(sample.frame_times, np.stack([np.arange(40), np.arange(1, 41)], axis=1) / 40, rtol=1e-6)
    assert sample.clip_times.min() == 0 and sample.clip_times.max() <= 1


def test_the_corrected_pooling_is_another_input(world: Any, tmp_path: Path) -> None:
    source = StoreSource([world.videos], world.words)
    for form in (Form(), Form("corrected"), Form()):
        index = write_shards(tmp_path, world.split, "train", source, form)
        assert index.pooling == form.pooling
    long = np.arange(192.0)[:, None]
    last = {
        pooling: float(make_sample(Video("v", None, ()), Raw(long, None, ()), Form(pooling)).frames[-1, 0])
        for pooling in ("published", "corrected")
    }
    assert last == {"published": 190.0, "corrected": 190.5}


@pytest.mark.parametrize(
    ("steps", "what"),
    [(np.zeros((0, 4)), "no rows"), (np.full((2, 4), np.nan), "NaN"), (np.zeros(4), r"\[4\], not \[T, E\]")],
)
def test_rows_that_are_no_features(steps: np.ndarray, what: str) -> None:
    with pytest.raises(CorruptData, match=f"v: .*{what}"):
        make_sample(Video("v", None, ()), Raw(steps, None, ()), Form())


@pytest.fixture
def data(world: Any, tmp_path: Path) -> Path:
    """A copy of the shards, to be damaged."""
    return Path(shutil.copytree(world.data, tmp_path / "data"))


def _read_all(folder: Path) -> int:
    with ShardReader(folder, "test") as reader:
        return len([reader[position] for position in range(len(reader))])


def test_every_cut_of_a_tar_is_found(data: Path) -> None:
    shard = data / "test-000000.tar"
    good = shard.read_bytes()
    for size in range(0, len(good), 256):
        shard.write_bytes(good[:size])
        with pytest.raises(CorruptData):
            _read_all(data)
    shard.write_bytes(good)
    assert _read_all(data) == 8


def test_every_flipped_header_byte_of_a_tar_is_found(data: Path) -> None:
    shard = data / "test-000000.tar"
    good = shard.read_bytes()
    for position in range(512):
        bad = bytearray(good)
        bad[position] ^= 1
        shard.write_bytes(bad)
        with pytest.raises(CorruptData):
            _read_all(data)


def test_a_missing_shard_a_stale_index_and_no_index(data: Path, world: Any) -> None:
    other = Split("made", "published", {name: videos[:1] for name, videos in world.split.videos.items()})
    other.write(data)
    with pytest.raises(CorruptData, match="stale"):
        _read_all(data)
    world.split.write(data)
    (data / "test-000000.tar").rename(data / "hidden")
    with pytest.raises(CorruptData, match="absent"):
        _read_all(data)
    (data / "test.index.json").unlink()
    with pytest.raises(MissingInput, match="prvr-build-split"):
        _read_all(data)


def test_an_index_that_is_not_one(data: Path) -> None:
    for text in ("[]", "{}", '{"format": "prvr-shards/2"}', "{"):
        (data / "test.index.json").write_text(text, encoding="utf-8")
        with pytest.raises(CorruptData):
            _read_all(data)
