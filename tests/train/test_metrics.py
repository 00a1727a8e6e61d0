"""Ranks and recalls against torchmetrics and brute force."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from prvr.train.metrics import CUTS, GROUPS, at_chance, chance, grouped, median_rank, ranks, recalls, table, video_ranks


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
@pytest.mark.parametrize("reverse", [False, True])
def test_both_directions_against_torchmetrics(seed: int, reverse: bool) -> None:
    """Text to video, and video to text, where a video has several queries and the best of them counts, or none."""
    from torchmetrics.retrieval import RetrievalHitRate, RetrievalMRR

    rng = torch.Generator().manual_seed(seed)
    scores, owner = torch.rand(240, 130, generator=rng), torch.randint(0, 120, (240,), generator=rng)
    own = torch.nn.functional.one_hot(owner, 130).bool()
    asked = own.any(0)
    assert own.sum(0).max() > 2 and not asked.all()
    found = video_ranks(scores, owner) if reverse else ranks(scores, owner)
    rows, targets = (scores.T[asked], own.T[asked]) if reverse else (scores, own)
    asking = torch.arange(len(rows))[:, None].expand_as(rows)
    for cut in CUTS:
        oracle = RetrievalHitRate(top_k=cut)(rows.flatten(), targets.flatten(), indexes=asking.flatten()).item()
        assert recalls(found)[f"R@{cut}"] == pytest.approx(100 * oracle, abs=1e-4)
    assert recalls(found)["SumR"] == pytest.approx(sum(recalls(found)[f"R@{cut}"] for cut in CUTS))
    # The reciprocal rank tells every rank and not only which are below a cut.
    mean = RetrievalMRR()(rows.flatten(), targets.flatten(), indexes=asking.flatten()).item()
    assert (1 / found.double()).mean().item() == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_tie_is_as_if_the_right_one_were_a_hair_lower(seed: int) -> None:
    from torchmetrics.functional.retrieval import retrieval_reciprocal_rank

    rng = torch.Generator().manual_seed(seed)
    # Scores above 0: torchmetrics takes lower ones for nothing retrieved.
    scores, owner = torch.randint(1, 9, (40, 30), generator=rng).float(), torch.randint(0, 25, (40,), generator=rng)
    own = torch.nn.functional.one_hot(owner, 30).bool()
    lower = scores - 0.5 * own
    assert not torch.equal(ranks(scores, owner), _ranks_by_sorting(scores, owner)), "no tie to speak of"
    assert torch.equal(ranks(scores, owner), _ranks_by_sorting(lower, owner))
    oracle = [retrieval_reciprocal_rank(row, target) for row, target in zip(lower, own, strict=True)]
    assert (1 / ranks(scores, owner)).tolist() == pytest.approx([rank.item() for rank in oracle])
    columns = [column for column in range(30) if own[:, column].any()]
    oracle = [retrieval_reciprocal_rank(lower[:, column], own[:, column]) for column in columns]
    assert (1 / video_ranks(scores, owner)).tolist() == pytest.approx([rank.item() for rank in oracle])


def _ranks_by_sorting(scores: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """As the released codes have them."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    return 1 + (order == owner[:, None]).int().argmax(1)


def test_a_model_whose_scores_are_no_numbers_is_last() -> None:
    nothing = torch.full((4, 50), float("nan"))
    assert ranks(nothing, torch.arange(4)).tolist() == [50] * 4
    assert video_ranks(nothing, torch.arange(4)).tolist() == [4] * 4
    scores = torch.rand(4, 50, generator=torch.Generator().manual_seed(0))
    scores[0, 0] = scores[1, 7] = float("nan")
    found = ranks(scores, torch.arange(4))
    assert found[0] == 50 and found[1] == 1 + (scores[1] > scores[1, 1]).sum() + 1


def test_chance_is_what_random_orders_reach() -> None:
    assert chance(150) == pytest.approx(
        {"R@1": 2 / 3, "R@5": 10 / 3, "R@10": 20 / 3, "R@100": 200 / 3, "SumR": 232 / 3}
    )
    assert chance(7)["R@10"] == 100
    scores = torch.rand(20000, 150, generator=torch.Generator().manual_seed(0))
    found = recalls(ranks(scores, torch.zeros(20000, dtype=torch.long)))
    assert found == pytest.approx(chance(150), abs=2.0)


def test_scores_of_chance_are_told_from_others() -> None:
    rng = torch.Generator().manual_seed(0)
    owner = torch.randint(0, 50, (400,), generator=rng)
    told = []
    for _ in range(300):
        scores = torch.rand(400, 50, generator=rng)
        assert not at_chance(ranks(scores.scatter_add(1, owner[:, None], torch.full((400, 1), 0.3)), owner), 50)
        told.append(at_chance(ranks(scores, owner), 50))
    assert sum(told) >= 296  # three deviations: all but 0.13 %
    assert at_chance(torch.full((400,), 50), 50)
    assert not at_chance(torch.ones(400, dtype=torch.long), 50)
    assert not at_chance(torch.full((3,), 50), 50), "three queries tell nothing"


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


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101])
def test_the_median_is_numpys(count: int) -> None:
    found = torch.randint(1, 40, (count,), generator=torch.Generator().manual_seed(count))
    assert median_rank(found) == np.median(found.numpy())
    assert median_rank(torch.tensor([1, 2, 9, 4])) == 3.0 and median_rank(torch.tensor([5, 1, 9])) == 5.0


@pytest.mark.parametrize("bounds", GROUPS.values(), ids=GROUPS)
def test_groups_against_torchmetrics_one_by_one(bounds: tuple[float, ...]) -> None:
    """Every known ratio is in one group, which has the recalls of its queries alone."""
    from torchmetrics.functional.retrieval import retrieval_hit_rate

    rng = torch.Generator().manual_seed(0)
    scores, owner = torch.rand(300, 40, generator=rng), torch.randint(0, 40, (300,), generator=rng)
    ratios = torch.rand(300, generator=rng) ** 2 + 1e-6
    ratios[::10] = float("nan")
    ratios[5::10] = torch.tensor(bounds[1:]).repeat(30)[:30]
    own = torch.nn.functional.one_hot(owner, 40).bool()
    groups: dict[str, list[int]] = {}
    for query, ratio in enumerate(ratios.tolist()):
        for lower, upper in pairwise(torch.tensor(bounds).tolist()):
            if lower < ratio <= upper:
                groups.setdefault(f"({round(lower, 6):g}, {round(upper, 6):g}]", []).append(query)
    assert len(groups) == len(bounds) - 1 and sum(map(len, groups.values())) == 270
    found = grouped(ranks(scores, owner), ratios, bounds)
    assert found.keys() == groups.keys()
    for name, queries in groups.items():
        assert found[name]["queries"] == len(queries)
        for cut in CUTS:
            hits = [retrieval_hit_rate(scores[query], own[query], top_k=cut).item() for query in queries]
            assert found[name][f"R@{cut}"] == pytest.approx(100 * np.mean(hits))


def test_groups_have_their_upper_bound_and_leave_out_what_is_unknown() -> None:
    found = torch.tensor([1, 2, 3, 200, 5, 6])
    ratios = torch.tensor([0.2, 0.2000001, 0.4, 1.0, 1.0003, float("nan")])
    groups = grouped(found, ratios, GROUPS["three"])
    assert {name: row["queries"] for name, row in groups.items()} == {"(0, 0.2]": 1, "(0.2, 0.4]": 2, "(0.4, 1]": 2}
    assert groups["(0, 0.2]"]["R@1"] == 100 and groups["(0.4, 1]"]["R@100"] == 50
    assert sum(int(row["queries"]) for row in grouped(found, ratios, GROUPS["six"]).values()) == 5
    assert grouped(found, torch.full((6,), float("nan")), GROUPS["three"]) == {}
