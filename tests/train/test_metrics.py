"""Ranks and recalls against torchmetrics and brute force."""

import pytest
import torch

from prvr.train.metrics import CUTS, GROUPS, chance, grouped, median_rank, ranks, recalls, table, video_ranks


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


def test_the_table_has_the_papers_columns() -> None:
    lines = table({"ms-sl": chance(150), "chance": chance(1000)}).splitlines()
    assert lines[0].split() == ["R@1", "R@5", "R@10", "R@100", "SumR"]
    assert lines[1].split() == ["ms-sl", "0.7", "3.3", "6.7", "66.7", "77.3"]


@pytest.mark.parametrize("seed", range(5))
def test_video_ranks_against_brute_force_with_ties(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 6, (30, 12), generator=rng).float()
    owner = torch.randint(0, 10, (30,), generator=rng)  # Two videos and more have no query.
    found = []
    for video in range(12):
        own = [row for row in range(30) if owner[row] == video]
        if own:
            best = max(scores[row, video].item() for row in own)
            found.append(1 + sum(scores[row, video].item() >= best for row in range(30) if row not in own))
    assert video_ranks(scores, owner).tolist() == found


def test_the_median_is_numpys() -> None:
    assert median_rank(torch.tensor([1, 2, 9, 4])) == 3.0 and median_rank(torch.tensor([5, 1, 9])) == 5.0


def test_groups_have_their_upper_bound_and_leave_out_what_is_unknown() -> None:
    found = torch.tensor([1, 2, 3, 200, 5, 6])
    ratios = torch.tensor([0.2, 0.2000001, 0.4, 1.0, 1.0003, float("nan")])
    groups = grouped(found, ratios, GROUPS["three"])
    assert {name: row["queries"] for name, row in groups.items()} == {"(0, 0.2]": 1, "(0.2, 0.4]": 2, "(0.4, 1]": 2}
    assert groups["(0, 0.2]"]["R@1"] == 100 and groups["(0.4, 1]"]["R@100"] == 50
    assert sum(int(row["queries"]) for row in grouped(found, ratios, GROUPS["six"]).values()) == 5
    assert grouped(found, torch.full((6,), float("nan")), GROUPS["three"]) == {}
