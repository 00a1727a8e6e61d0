"""Samples to batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prvr.datasets.batch import Batch
from prvr.datasets.plan import batches
from prvr.datasets.pool import to_clips, to_frames
from prvr.datasets.sample import Sample
from prvr.datasets.stream import Collate, ShardReader, stream
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
