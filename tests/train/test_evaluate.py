"""How a split is ranked, and what is written of it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from prvr.datasets.batch import Batch
from prvr.datasets.sample import Sample
from prvr.datasets.stream import Collate, ShardReader
from prvr.manifests.split import Query, Video
from prvr.train import evaluate
from prvr.train.evaluate import Ranking, rank_split, write_scores
from prvr.train.models import gmmformer


class _Samples:
    """Where a reader of shards would be."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples
        self.index = SimpleNamespace(video_ids=tuple(sample.video.video_id for sample in samples))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Sample:
        return self.samples[row]


def test_the_gallery_goes_in_the_models_own_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of GMMFormer the scores tell: its windows are of the longest video of each portion."""
    generator = np.random.default_rng(0)

    def values(*shape: int) -> Any:
        return generator.standard_normal(shape, dtype=np.float32)

    samples = []
    for length in (3, 9, 4, 20, 6):
        video = Video(f"v{length}", None, (Query(f"q{length}", "what", None, None, None),))
        samples.append(
            Sample(video, values(length, 4), values(32, 4), values(length, 2), values(32, 2), (values(2, 5),))
        )

    def streamed(reader: _Samples, positions: list[list[int]], collate: Collate) -> Iterator[Batch]:
        return (collate([reader[row] for row in rows]) for rows in positions)

    torch.manual_seed(0)
    model = gmmformer.build(gmmformer.Options(hidden=8, initializer_range=0.5), frame_width=4, word_width=5).eval()
    monkeypatch.setattr(evaluate, "stream", streamed)
    collate = Collate(normalise=False, max_words=30)
    assert model.gallery_batch == 100
    scores = {}
    for portion in (100, 2):
        monkeypatch.setattr(model, "gallery_batch", portion)
        scores[portion] = rank_split(model, cast(ShardReader, _Samples(samples)), collate, torch.device("cpu")).scores
    for portion, groups in ((100, [range(5)]), (2, [range(2), range(2, 4), range(4, 5)])):
        whole = collate(samples)
        with torch.no_grad():
            text = model.encode_text(whole.words, whole.word_mask)
            parts = [collate([samples[row] for row in rows]) for rows in groups]
            columns = [model.score(text, model.encode_video(p.frames, p.frame_mask, p.clips)).fused for p in parts]
        torch.testing.assert_close(scores[portion], torch.cat(columns, dim=1))
    assert not torch.allclose(scores[100], scores[2], atol=1e-5)


def test_scores_are_saved_as_documented(tmp_path: Path) -> None:
    ranking = Ranking(
        torch.rand(3, 2), torch.tensor([0, 1, 1]), ("a", "b", "é"), ("v", "w"), torch.tensor([0.1, 0.5, 1.0])
    )
    write_scores(tmp_path / "scores.npz", ranking)
    with np.load(tmp_path / "scores.npz") as saved:
        assert saved["scores"].dtype == np.float32 and saved["scores"].shape == (3, 2)
        assert saved["query_ids"].tolist() == ["a", "b", "é"] and saved["video_ids"].tolist() == ["v", "w"]
