"""Samples to batches."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prvr.datasets.batch import Batch
from prvr.datasets.plan import batches, epoch_order, share
from prvr.datasets.pool import to_clips, to_frames
from prvr.datasets.sample import Sample
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.errors import CorruptData
from prvr.manifests.split import Query, Video


def test_padding_masks_and_owners(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        samples = [reader[position] for position in (3, 0, 7)]
        batch = next(stream(reader, [[3, 0, 7]], Collate(normalise=False, max_words=3)))
    longest = max(len(sample.frames) for sample in samples)
    assert batch.frames.shape == (3, longest, 8) and batch.clips.shape == (3, 32, 8) and batch.words.shape == (9, 3, 6)
    assert batch.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert batch.frame_mask.sum(1).tolist() == [len(sample.frames) for sample in samples]
    assert batch.word_mask.sum(1).tolist() == [2, 3, 3] * 3, "words beyond max_words are left out"
    assert not batch.frames[~batch.frame_mask].any() and not batch.words[~batch.word_mask].any()
    np.testing.assert_array_equal(batch.frames[1, : len(samples[1].frames)], samples[1].frames)


def test_the_golden_batches_of_the_released_code(shared: Path) -> None:
    """The shared goldens' raw videos and queries, pooled and collated, are MS-SL's own evaluation inputs."""
    import json

    from safetensors.torch import load_file

    folder = shared / "golden" / "prvr"
    golden = load_file(folder / "mssl" / "golden.safetensors")
    info = json.loads((folder / "mssl" / "info.json").read_text(encoding="utf-8"))
    videos, queries = np.load(folder / "raw_videos.npz"), np.load(folder / "raw_queries.npz")
    captions = json.loads((folder / "ids.json").read_text(encoding="utf-8"))["captions"]
    samples = []
    for video_id in info["train_video_order"]:
        steps = videos[video_id]
        own = [caption for caption in captions if caption.split("#")[0] == video_id]
        times = np.arange(len(steps), dtype=np.float64)
        frames, clips = to_frames(steps, times), to_clips(steps, times)
        words = tuple(queries[caption.replace("#", "__")] for caption in own)
        line = Video(video_id, None, tuple(Query(caption, "x") for caption in own))
        samples.append(Sample(line, frames.values, clips.values, frames.spans, clips.spans, words))
    batch = Collate(normalise=True, max_words=30)(samples)
    for name, ours in {
        "clip_video_features": batch.clips,
        "frame_video_features": batch.frames,
        "videos_mask": batch.frame_mask.float(),
        "text_feat": batch.words,
        "text_mask": batch.word_mask.float(),
        "text_labels": batch.owner,
    }.items():
        theirs = golden[f"trainin_{name}"]
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= 1e-6, name


def test_videos_without_queries_make_a_batch(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        sample = reader[0]
    silent = Sample(Video("s", None, ()), sample.frames, sample.clips, sample.frame_times, sample.clip_times, ())
    batch = Collate(normalise=True, max_words=30)([silent])
    assert batch.frames.shape[0] == 1 and batch.owner.shape == (0,) and batch.words.shape[0] == 0


def test_an_epoch_streams_every_video(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        found = list(stream(reader, batches(range(len(reader)), 5), Collate(normalise=True, max_words=30)))
    assert [len(batch.frames) for batch in found] == [5, 5, 2]


def _equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def test_made_ahead_or_not_from_a_step_on_or_by_hand_batches_are_the_same(world: Any) -> None:
    collate = Collate(normalise=True, max_words=30)
    with ShardReader(world.data, "train") as reader:
        plan = batches(epoch_order(reader.shard_sizes(), seed=3, epoch=1), 5)
        ahead, plain = (list(stream(reader, plan, collate, ahead=limit)) for limit in (1, 0))
        rest = list(stream(reader, plan[1:], collate))
        by_hand = [collate([reader[position] for position in positions]) for positions in plan]
    assert all(map(_equal, ahead, plain)) and all(map(_equal, ahead, by_hand)) and all(map(_equal, ahead[1:], rest))


def test_the_ranks_of_any_world_see_the_global_batches(world: Any) -> None:
    collate = Collate(normalise=False, max_words=30)
    with ShardReader(world.data, "train") as reader:
        plan = batches(epoch_order(reader.shard_sizes(), seed=3, epoch=0), 5)
        whole = list(stream(reader, plan, collate))
        for size in (2, 3, 4, 8):
            ranks = [
                list(stream(reader, [share(batch, rank=rank, world=size) for batch in plan], collate))
                for rank in range(size)
            ]
            assert {len(own) for own in ranks} == {len(plan)}, "every rank takes part in every step"
            for step, batch in enumerate(whole):
                clips = torch.cat([own[step].clips for own in ranks])
                assert torch.equal(clips, batch.clips)
                assert sum(len(own[step].owner) for own in ranks) == len(batch.owner)


def test_a_share_without_videos_is_a_batch_of_the_same_widths(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        (batch,) = stream(reader, [[]], Collate(normalise=True, max_words=30))
    assert batch.frames.shape == (0, 0, 8) and batch.clips.shape == (0, 32, 8) and batch.words.shape == (0, 0, 6)
    assert batch.frame_mask.shape == (0, 0) and batch.word_mask.shape == (0, 0) and batch.owner.shape == (0,)


def test_threads_and_files_end_with_the_stream(world: Any) -> None:
    before = threading.active_count()
    with ShardReader(world.data, "train") as reader:
        batch = next(stream(reader, batches(range(12), 1), Collate(normalise=True, max_words=30)))
        assert len(batch.frames) == 1 and threading.active_count() == before, "dropped after one batch"
        running = stream(reader, batches(range(12), 1), Collate(normalise=True, max_words=30))
        next(running)
        assert threading.active_count() == before + 1
        running.close()  # type: ignore[attr-defined]
        assert threading.active_count() == before


def test_no_more_batches_lie_ready_than_the_bytes_allow(world: Any) -> None:
    made: list[int] = []

    class Counting(Collate):
        def fill(self, *arguments: Any) -> Batch:
            made.append(1)
            return super().fill(*arguments)

    with ShardReader(world.data, "train") as reader:
        collate = Counting(normalise=True, max_words=30)
        size = collate.fill([reader[0]], [len(reader[0].frames)], 8, 6).nbytes
        for limit, most in ((1, 1), (int(3.5 * size), 5)):
            made.clear()
            for read, _ in enumerate(stream(reader, [[0]] * 12, collate, ahead=limit), start=1):
                time.sleep(0.01)
                assert len(made) - read <= most + 1, "those that lie ready, and one in the making"
            assert len(made) == 12


def test_an_error_in_the_thread_is_raised_where_batches_are_read(world: Any, tmp_path: Path) -> None:
    data = Path(shutil.copytree(world.data, tmp_path / "data"))
    with ShardReader(data, "train") as reader:
        start, _ = reader.index.shards[0].extents()[7]
        with (data / "train-000000.tar").open("r+b") as file:
            file.seek(start + 600)
            file.write(b"?")
        running = stream(reader, batches(range(12), 3), Collate(normalise=True, max_words=30))
        assert [len(next(running).frames) for _ in range(2)] == [3, 3]
        with pytest.raises(CorruptData, match=r"train-000000.tar, 'train.7': its bytes changed"):
            next(running)


def test_memory_is_used_again_and_never_under_a_holder(world: Any) -> None:
    collate = Collate(normalise=True, max_words=30)
    with ShardReader(world.data, "train") as reader:
        places = []
        held = next(stream(reader, [[0, 1]], collate))
        row, copy = held.frames[1], held.frames[1].clone()
        del held
        for batch in stream(reader, [[2, 3]] * 20, collate, ahead=0):
            places.append(batch.frames.data_ptr())
    assert len(set(places)) == 2, "one is held here while the next is made"
    assert torch.equal(row, copy), "a row keeps the batch's memory"


def test_lent_samples_are_those_that_are_read(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        for position, sample in zip((5, 0, 11), reader.lent((5, 0, 11)), strict=True):
            own = reader[position]
            assert own.video == sample.video
            np.testing.assert_array_equal(own.frames, sample.frames)
            np.testing.assert_array_equal(np.concatenate(own.words), np.concatenate(sample.words))


def test_a_sample_of_other_widths_is_named(world: Any) -> None:
    with ShardReader(world.data, "train") as reader:
        sample = reader[0]
    with pytest.raises(CorruptData, match=r"train.0: frames \[\d+, 8\], where \[\d+, 9\] belong"):
        Collate(normalise=True, max_words=30).fill([sample], [len(sample.frames)], 9, 6)


def test_a_batch_checks_its_shapes() -> None:
    with pytest.raises(ValueError, match="words and owner"):
        Batch(
            torch.zeros(2, 3, 4),
            torch.ones(2, 3, dtype=torch.bool),
            torch.zeros(2, 32, 4),
            torch.zeros(5, 3, 4),
            torch.ones(5, 3, dtype=torch.bool),
            torch.zeros(4, dtype=torch.long),
        )
