"""Ranks and recalls against torchmetrics and brute force."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prvr.train.evaluate import CUTS, Ranking, chance, ranks, recalls, table, write_scores


def _brute(scores: torch.Tensor, owner: torch.Tensor) -> list[int]:
    found = []
    for row, own in zip(scores.tolist(), owner.tolist(), strict=True):
        found.append(1 + sum(1 for column, score in enumerate(row) if column != own and score >= row[own]))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_ranks_against_brute_force_with_ties(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 6, (30, 12), generator=rng).float()
    owner = torch.randint(0, 12, (30,), generator=rng)
    assert ranks(scores, owner).tolist() == _brute(scores, owner)


def test_a_model_that_says_the_same_of_every_video_is_last_not_first() -> None:
    assert ranks(torch.zeros(4, 50), torch.arange(4)).tolist() == [50] * 4


@pytest.mark.parametrize("seed", range(3))
def test_recalls_against_torchmetrics(seed: int) -> None:
    from torchmetrics.functional.retrieval import retrieval_recall

    rng = torch.Generator().manual_seed(seed)
    scores, owner = torch.rand(40, 200, generator=rng), torch.randint(0, 200, (40,), generator=rng)
    found = recalls(ranks(scores, owner))
    for cut in CUTS:
        targets = torch.nn.functional.one_hot(owner, 200).bool()
        oracle = torch.stack(
            [retrieval_recall(row, target, top_k=cut) for row, target in zip(scores, targets, strict=True)]
        )
        assert found[f"R@{cut}"] == pytest.approx(oracle.mean().item() * 100, abs=1e-4)
    assert found["SumR"] == pytest.approx(sum(found[f"R@{cut}"] for cut in CUTS))


def test_chance_is_what_random_orders_reach() -> None:
    assert chance(150) == pytest.approx(
        {"R@1": 2 / 3, "R@5": 10 / 3, "R@10": 20 / 3, "R@100": 200 / 3, "SumR": 232 / 3}
    )
    assert chance(7)["R@10"] == 100
    scores = torch.rand(20000, 150, generator=torch.Generator().manual_seed(0))
    found = recalls(ranks(scores, torch.zeros(20000, dtype=torch.long)))
    assert found == pytest.approx(chance(150), abs=2.0)


def test_scores_are_saved_as_documented(tmp_path: Path) -> None:
    ranking = Ranking(torch.rand(3, 2), torch.tensor([0, 1, 1]), ("a", "b", "é"), ("v", "w"))
    write_scores(tmp_path / "scores.npz", ranking)
    with np.load(tmp_path / "scores.npz") as saved:
        assert saved["scores"].dtype == np.float32 and saved["scores"].shape == (3, 2)
        assert saved["query_ids"].tolist() == ["a", "b", "é"] and saved["video_ids"].tolist() == ["v", "w"]


def test_the_table_has_the_papers_columns() -> None:
    lines = table({"ms-sl": chance(150), "chance": chance(1000)}).splitlines()
    assert lines[0].split() == ["R@1", "R@5", "R@10", "R@100", "SumR"]
    assert lines[1].split() == ["ms-sl", "0.7", "3.3", "6.7", "66.7", "77.3"]
