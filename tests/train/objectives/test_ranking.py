"""The ranking losses by hand, and where there is nothing to contrast. The released values: ``models/test_ms_sl.py``."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from prvr.datasets.batch import Batch
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.manifests.settings import build as build_settings
from prvr.train.interface import Step, TextCode, TrainingBranch, VideoCode, VideoTextModel
from prvr.train.models import ms_sl
from prvr.train.objectives import ranking
from prvr.train.objectives.ranking import (
    Options,
    pair_nce,
    pair_triplet,
    paired_nce,
    text_to_video,
    unpaired_nce,
    video_to_text,
)

MARGIN = 0.2
COSINE = torch.tensor([[0.9, 0.1, 0.3], [0.2, 0.5, 0.6], [0.4, 0.8, 0.1], [0.7, 0.0, 0.2]])
OWNER = torch.tensor([0, 1, 1, 2])


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _hinge(negative: float, positive: float) -> float:
    return max(0.0, MARGIN + negative - positive)


@pytest.fixture(scope="module")
def model() -> VideoTextModel:
    return ms_sl.build(ms_sl.Options(hidden=8, heads=1), frame_width=4, word_width=4)


def _step(scores: Mapping[str, TrainingBranch], owner: Tensor, epoch: int = 0) -> Step:
    """A step that has scores; the losses read nothing else but the owners."""
    queries, videos = len(owner), int(owner.max()) + 1
    ones = torch.ones(queries, 1, dtype=torch.bool)
    frames, clips, words = torch.zeros(videos, 1, 4), torch.zeros(videos, 2, 4), torch.zeros(queries, 1, 4)
    batch = Batch(frames, torch.ones(videos, 1, dtype=torch.bool), clips, words, ones, owner)
    return Step(batch, TextCode(words, ones, words[:, 0]), VideoCode(None, None, None, None), scores, epoch, _rng())


def test_hardest_triplets_by_hand() -> None:
    t2v = [_hinge(0.3, 0.9), _hinge(0.6, 0.5), _hinge(0.4, 0.8), _hinge(0.7, 0.2)]
    v2t = [_hinge(0.7, 0.9), _hinge(0.1, (0.5 + 0.8) / 2), _hinge(0.6, 0.2)]
    one = text_to_video(COSINE, OWNER, margin=MARGIN, pool=1, rng=_rng())
    other = video_to_text(COSINE, OWNER, margin=MARGIN, hardest=True, rng=_rng())
    assert one.item() == pytest.approx(sum(t2v) / 4)
    assert other.item() == pytest.approx(sum(v2t) / 3)


def test_random_triplets_reach_every_negative_and_only_negatives() -> None:
    row, owner = COSINE[:1], OWNER[:1]  # positive 0.9, negatives 0.1 and 0.3
    values = {round(text_to_video(row, owner, margin=1.0, pool=None, rng=_rng(s)).item(), 4) for s in range(30)}
    assert values == {0.2, 0.4}
    column, owner = COSINE[:, :1], torch.tensor([0, 1, 1, 2])  # positive 0.9, negatives 0.2, 0.4 and 0.7
    column = torch.cat([column, torch.full((4, 2), -5.0)], dim=1)
    column[1:3, 1] = column[3, 2] = 5.0  # the other two videos are right by far
    losses = {round(video_to_text(column, owner, margin=1.0, hardest=False, rng=_rng(s)).item(), 4) for s in range(60)}
    assert losses == {round(loss / 3, 4) for loss in (0.3, 0.5, 0.8)}


def test_a_pool_is_of_the_hardest() -> None:
    scores = torch.arange(10.0).repeat(200, 1)  # positive 0; the three hardest are 9, 8 and 7
    gradient = torch.zeros_like(scores).requires_grad_()
    positive = torch.zeros(200, dtype=torch.int64)
    text_to_video(scores + gradient, positive, margin=MARGIN, pool=3, rng=_rng()).backward()  # type: ignore[no-untyped-call]
    assert gradient.grad is not None
    assert gradient.grad.sum(0).nonzero().squeeze(1).tolist() == [0, 7, 8, 9]
    assert (gradient.grad.sum(0)[7:] * 200).min() > 40


def test_unpaired_nce_by_hand() -> None:
    dot = 5 * COSINE
    e = dot.exp().tolist()
    t2v = [math.log(sum(e[q]) / e[q][v]) for q, v in enumerate(OWNER.tolist())]
    columns = [sum(row[v] for row in e) for v in range(3)]
    v2t = [math.log(c / p) for c, p in zip(columns, (e[0][0], e[1][1] + e[2][1], e[3][2]), strict=True)]
    assert unpaired_nce(dot, OWNER).item() == pytest.approx(sum(t2v) / 4 + sum(v2t) / 3, rel=1e-5)


def test_paired_nce_counts_the_positive_twice() -> None:
    dot = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    e = dot.exp().tolist()
    first = math.log((e[0][0] + e[0][1] + e[0][0] + e[1][0]) / e[0][0])
    second = math.log((e[1][0] + e[1][1] + e[0][1] + e[1][1]) / e[1][1])
    assert paired_nce(dot).item() == pytest.approx((first + second) / 2, rel=1e-5)


def test_nce_of_large_products_is_finite() -> None:
    dot = torch.tensor([[1e4, -1e4], [0.0, 1e4]])
    assert unpaired_nce(dot, torch.tensor([0, 1])).isfinite() and paired_nce(dot).isfinite()


@pytest.mark.parametrize("hard", [False, True])
def test_one_video_has_nothing_to_be_told_from(model: VideoTextModel, hard: bool) -> None:
    cosine, owner = COSINE[:, :1].clone().requires_grad_(), torch.zeros(4, dtype=torch.int64)
    options = Options(nce={"clip": 1.0}, hard_from_epoch=0 if hard else 99)
    terms = ranking.build(options, model).terms(model, _step({"clip": TrainingBranch(cosine, cosine)}, owner))
    assert {name: round(term.item(), 6) for name, term in terms.items()} == {"clip_nce": 0.0, "clip_triplet": 0.0}
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert cosine.grad is not None
    torch.testing.assert_close(cosine.grad, torch.zeros(4, 1), rtol=0, atol=1e-6)


def test_one_query_has_nothing_to_be_told_from(model: VideoTextModel) -> None:
    cosine = torch.tensor([[0.3]]).requires_grad_()
    branch = TrainingBranch(cosine, cosine, paired=True)
    terms = ranking.build(Options(nce={"frame": 1.0}), model).terms(model, _step({"frame": branch}, torch.tensor([0])))
    assert terms["frame_triplet"].item() == 0
    assert terms["frame_nce"].item() == pytest.approx(math.log(2))  # the positive stands twice in its own denominator
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert cosine.grad is not None and cosine.grad.abs().item() < 1e-6


@pytest.mark.parametrize("hardest", [False, True])
@pytest.mark.parametrize("owner", [[0, 0, 0, 0], [0, 2, 2, 0]])
def test_a_video_without_queries_or_without_other_queries_adds_nothing(owner: list[int], hardest: bool) -> None:
    scores = COSINE.clone().requires_grad_()
    owners = torch.tensor(owner)
    triplet = video_to_text(scores, owners, margin=MARGIN, hardest=hardest, rng=_rng())
    total = triplet + unpaired_nce(scores, owners)
    total.backward()  # type: ignore[no-untyped-call]
    assert total.isfinite() and scores.grad is not None and scores.grad.isfinite().all()
    if set(owner) == {0}:
        assert triplet.item() == 0


def test_terms_carry_their_weights(model: VideoTextModel) -> None:
    square = COSINE @ COSINE.T
    step = {"clip": TrainingBranch(COSINE, 5 * COSINE), "frame": TrainingBranch(square, 5 * square, paired=True)}
    plain = ranking.build(Options(nce={"clip": 1.0, "frame": 1.0}), model).terms(model, _step(step, OWNER))
    options = Options(triplet=3.0, nce={"clip": 0.5, "frame": 0.25})
    weighted = ranking.build(options, model).terms(model, _step(step, OWNER))
    for name, weight in {"clip_nce": 0.5, "frame_nce": 0.25, "clip_triplet": 3.0, "frame_triplet": 3.0}.items():
        assert plain[name].item() > 0
        torch.testing.assert_close(weighted[name], weight * plain[name])
    objective = ranking.build(options, model)
    torch.testing.assert_close(objective(model, _step(step, OWNER)), torch.stack(list(weighted.values())).sum())


def test_hard_negatives_begin_at_their_epoch(model: VideoTextModel) -> None:
    objective = ranking.build(Options(hard_from_epoch=3, hard_pool=1, nce={"clip": 1.0}), model)
    scores = {"clip": TrainingBranch(COSINE, COSINE)}
    hardest = text_to_video(COSINE, OWNER, margin=MARGIN, pool=1, rng=_rng())
    hardest += video_to_text(COSINE, OWNER, margin=MARGIN, hardest=True, rng=_rng())
    before, after = (objective.terms(model, _step(scores, OWNER, epoch))["clip_triplet"] for epoch in (2, 3))
    torch.testing.assert_close(after, hardest)
    assert before < after


@pytest.mark.parametrize("nce", [{"clip": 1.0}, {"clip": 1.0, "frame": 1.0, "moment": 1.0}])
def test_weights_of_other_branches_than_the_models_are_refused(model: VideoTextModel, nce: dict[str, float]) -> None:
    branch = TrainingBranch(COSINE, COSINE)
    with pytest.raises(ConfigurationError, match=r"the model's branches are \['clip', 'frame'\]"):
        ranking.build(Options(nce=nce), model).terms(model, _step({"clip": branch, "frame": branch}, OWNER))


# --- the forms of the papers, against their equations in NumPy


def _hardest(scores: NDArray[np.float64], owner: list[int]) -> float:
    """Equation 8 of MS-SL, and 5 of v1 of Ren et al., a pair at a time; without a negative there is no hinge."""
    total = 0.0
    for q, v in enumerate(owner):
        queries = [scores[other, v] for other, of in enumerate(owner) if of != v]
        videos = [scores[q, other] for other in range(scores.shape[1]) if other != v]
        for negatives in (queries, videos):
            total += max(0.0, MARGIN + max(negatives) - scores[q, v]) if negatives else 0.0
    return total / len(owner)


def _nce(scores: NDArray[np.float64], owner: list[int], form: str) -> float:
    """Equation 9 of MS-SL, or 6 of v1 of Ren et al., with exp(S) for S, a pair at a time."""
    e = np.exp(scores)
    total = 0.0
    for q, v in enumerate(owner):
        if form == "paper":
            texts = e[q, v] + sum(e[other, v] for other, of in enumerate(owner) if of != v)
        else:
            texts = sum(e[other, v] for other in range(len(owner)))
        videos = e[q, v] + sum(e[q, other] for other in range(scores.shape[1]) if other != v)
        total -= np.log(e[q, v] / texts) + np.log(e[q, v] / videos)
    return total / len(owner)


def _case(videos: int, owner: list[int], seed: int, equal: bool) -> tuple[NDArray[np.float64], Tensor]:
    scores = np.random.default_rng(seed).uniform(-1, 1, (len(owner), videos)).astype(np.float32)
    if equal:
        scores = np.round(scores)  # ties, among the hardest too
    return scores.astype(np.float64), torch.tensor(owner)


CASES = [
    *((videos, list(np.random.default_rng(videos).integers(0, videos, 3 * videos))) for videos in (2, 5, 17)),
    (1, [0]),
    (1, [0, 0, 0]),
    (3, [1]),  # one query, two videos without any
    (4, [0, 0, 2, 2]),
    (3, [0, 1, 2]),
]


@pytest.mark.parametrize("form", ["paper", "ren"])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(("videos", "owner"), CASES)
def test_forms_of_the_papers_are_their_equations(
    model: VideoTextModel, videos: int, owner: list[int], equal: bool, form: str
) -> None:
    objective = ranking.build(Options(form=form, margin=MARGIN, hard_from_epoch=0, nce={"clip": 1.0}), model)
    for seed in range(5):
        scores, owners = _case(videos, owner, seed, equal)
        cosine = torch.tensor(scores).requires_grad_()
        terms = objective.terms(model, _step({"clip": TrainingBranch(cosine, 9 * cosine)}, owners))
        assert terms["clip_triplet"].item() == pytest.approx(_hardest(scores, owner), rel=0, abs=1e-6)
        assert terms["clip_nce"].item() == pytest.approx(_nce(scores, owner, form), rel=0, abs=1e-6)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        assert cosine.grad is not None and cosine.grad.isfinite().all()


@pytest.mark.parametrize("form", ["paper", "ren"])
def test_gradients_of_the_papers_forms_are_those_of_differences(model: VideoTextModel, form: str) -> None:
    scores, owners = _case(4, [0, 2, 2, 3, 0, 1], seed=1, equal=False)
    cosine = torch.tensor(scores).requires_grad_()
    objective = ranking.build(Options(form=form, hard_from_epoch=0, nce={"clip": 1.0}), model)
    objective(model, _step({"clip": TrainingBranch(cosine, cosine)}, owners)).backward()
    assert cosine.grad is not None
    for place in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[place] = 1e-6
        high, low = (
            _hardest(s, owners.tolist()) + _nce(s, owners.tolist(), form) for s in (scores + step, scores - step)
        )
        assert cosine.grad[place].item() == pytest.approx((high - low) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("form", ["paper", "ren"])
def test_a_paired_branch_has_the_same_equations_of_its_own_columns(model: VideoTextModel, form: str) -> None:
    """Each query's video stands once a query, as that one sees it; columns of a query's own video are no negatives."""
    owner = [0, 0, 1, 2, 1]
    scores = np.random.default_rng(3).uniform(-1, 1, (5, 5))
    nce = triplet = 0.0
    for q, v in enumerate(owner):
        others = [other for other, of in enumerate(owner) if of != v]
        triplet += max(0.0, MARGIN + max(scores[others, q]) - scores[q, q])
        triplet += max(0.0, MARGIN + max(scores[q, others]) - scores[q, q])
        e = np.exp(scores - scores[q, q])
        texts = e[:, q].sum() if form == "ren" else 1 + e[others, q].sum()
        nce += np.log(texts) + np.log(1 + e[q, others].sum())
    cosine = torch.tensor(scores)
    objective = ranking.build(Options(form=form, hard_from_epoch=0, nce={"frame": 1.0}), model)
    terms = objective.terms(model, _step({"frame": TrainingBranch(cosine, cosine, paired=True)}, torch.tensor(owner)))
    assert terms["frame_triplet"].item() == pytest.approx(triplet / 5, rel=0, abs=1e-6)
    assert terms["frame_nce"].item() == pytest.approx(nce / 5, rel=0, abs=1e-6)


def test_a_random_negative_of_a_pair_is_any_query_or_video_but_its_own() -> None:
    """Each negative alone in its value: a pair's hinges tell which were drawn, and all are, equally often."""
    owner, rounds = torch.tensor([0, 0, 1, 2]), 600
    own = owner[:, None] == torch.arange(3)
    cosine = torch.zeros(4, 3, requires_grad=True)
    rng = _rng()
    for _ in range(rounds):
        loss = pair_triplet(cosine, owner, own, margin=1.0, hardest=False, rng=rng)
        loss.backward()  # type: ignore[no-untyped-call]
    assert cosine.grad is not None
    drawn = cosine.grad * 4 + 2 * rounds * own  # each pair takes its own place away twice
    expected = torch.zeros(4, 3)
    for q, v in enumerate(owner.tolist()):
        for other in range(3):
            expected[q, other] += rounds / 2 * (other != v)
        queries = [row for row, of in enumerate(owner.tolist()) if of != v]
        for row in queries:
            expected[row, v] += rounds / len(queries)
    torch.testing.assert_close(drawn, expected, rtol=0.15, atol=0)  # some four standard deviations
    assert not drawn[own].any()


def test_the_hardest_begin_at_their_epoch_in_the_papers_forms_too(model: VideoTextModel) -> None:
    objective = ranking.build(Options(form="paper", hard_from_epoch=3, nce={"clip": 1.0}), model)
    scores = {"clip": TrainingBranch(COSINE, COSINE)}
    before, after = (objective.terms(model, _step(scores, OWNER, epoch))["clip_triplet"] for epoch in (2, 3))
    own = OWNER[:, None] == torch.arange(3)
    torch.testing.assert_close(after, pair_triplet(COSINE, OWNER, own, margin=MARGIN, hardest=True, rng=_rng()))
    assert before < after


def test_large_similarities_and_many_queries_of_one_video_are_finite() -> None:
    own = torch.ones(3, 1, dtype=torch.bool)
    scores = torch.tensor([[1e4], [-1e4], [0.0]]).requires_grad_()
    for all_texts in (False, True):
        loss = pair_nce(scores, torch.zeros(3, dtype=torch.int64), own, all_texts=all_texts)
        assert loss.isfinite() and torch.autograd.grad(loss, scores)[0].isfinite().all()


def test_a_form_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(UnknownName, match="form of ranking 'papers': did you mean 'paper'"):
        Options(form="papers")


@pytest.mark.parametrize(
    "settings", [{"hard_pool": 0}, {"margin": -0.1}, {"triplet": math.nan}, {"nce": {"clip": math.inf}}]
)
def test_options_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{'clip' if 'nce' in settings else next(iter(settings))} is"):
        build_settings(Options, settings, where="ranking")
