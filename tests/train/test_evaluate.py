"""What is written of an evaluation."""

from pathlib import Path

import numpy as np
import torch

from prvr.train.evaluate import Ranking, write_scores


def test_scores_are_saved_as_documented(tmp_path: Path) -> None:
    ranking = Ranking(
        torch.rand(3, 2), torch.tensor([0, 1, 1]), ("a", "b", "é"), ("v", "w"), torch.tensor([0.1, 0.5, 1.0])
    )
    write_scores(tmp_path / "scores.npz", ranking)
    with np.load(tmp_path / "scores.npz") as saved:
        assert saved["scores"].dtype == np.float32 and saved["scores"].shape == (3, 2)
        assert saved["query_ids"].tolist() == ["a", "b", "é"] and saved["video_ids"].tolist() == ["v", "w"]
