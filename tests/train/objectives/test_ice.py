"""ICE against section 3.3 of Ren et al., once more in NumPy: moment by moment, query by query."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build as build_settings
from prvr.train.interface import Step, VideoTextModel
from prvr.train.models import dual_branch
from prvr.train.objectives import ice
from prvr.train.objectives.ice import Options, correlated

type Floats = NDArray[np.float64]
type StepOf = Callable[..., Step]
type PairLoss = Callable[..., float]


@pytest.fixture(scope="module")
def model() -> VideoTextModel:
    return dual_branch.build(dual_branch.Options(hidden=8), frame_width=4, word_width=4)


def _term(model: VideoTextModel, step: Step, **settings: Any) -> float:
    options = build_settings(Options, settings, where="ice")
    return ice.build(options, model).terms(model, step)["ice"].item()


def _found(sentences: Floats, moments: Floats, owner: list[int], threshold: float) -> list[tuple[int, int, int]]:
    """Query, video and moment of each pair: equation 4 by search, over [moments, queries] as the paper has it."""
    videos, clips = moments.shape[:2]
    table = np.empty((videos * clips, len(sentences)))
    for i in range(videos * clips):
        for j, query in enumerate(sentences):
            moment = moments[i // clips, i % clips]
            cosine = moment @ query / np.sqrt(moment @ moment) / np.sqrt(query @ query)
            table[i, j] = -1 if owner[j] == i // clips else cosine
    pairs = []
    for j in range(len(sentences)):
        i = min(i for i in range(len(table)) if table[i, j] == table[:, j].max())
        best = min(k for k in range(len(sentences)) if table[i, k] == table[i].max())
        if best == j and table[i, j] > threshold:
            pairs.append((j, i // clips, i % clips))
    return pairs


def _case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences, moments and owners of a random size; every third case repeats vectors, so that similarities are equal."""
    rng = np.random.default_rng(seed)
    videos, queries, clips, width = rng.integers(1, 7), rng.integers(1, 10), rng.integers(1, 5), rng.integers(2, 6)
    if seed % 3 == 2:
        alphabet = np.eye(width)  # of unit length along the axes: equal cosines are equal to the last bit
        sentences = alphabet[rng.integers(0, width, queries)]
        moments = alphabet[rng.integers(0, width, (videos, clips))]
    else:
        sentences = rng.standard_normal((queries, width))
        moments = rng.standard_normal((videos, clips, width))
    owner = rng.integers(0, videos, queries)
    return torch.from_numpy(sentences), torch.from_numpy(moments), torch.from_numpy(owner)


@pytest.mark.parametrize("threshold", [-1.0, 0.4, 0.9])
@pytest.mark.parametrize("epoch", [0, 20])
def test_random_cases(
    epoch: int, threshold: float, model: VideoTextModel, step_of: StepOf, pair_loss: PairLoss
) -> None:
    counts = []
    for seed in range(120):
        sentences, moments, owner = _case(seed)
        step = step_of(sentences, moments, owner, epoch=epoch, seed=seed)
        settings = {"margin": 0.2, "nce": 0.5, "hard_pool": 2, "hard_from_epoch": 20}
        found = _term(model, step, weight=0.3, threshold=threshold, contrast=settings)
        pairs = _found(sentences.numpy(), moments.numpy(), owner.tolist(), threshold)
        one = sentences.numpy()[[pair[0] for pair in pairs]]
        other = moments.numpy()[[pair[1] for pair in pairs], [pair[2] for pair in pairs]]
        pool, rng = (2 if epoch == 20 else None), torch.Generator().manual_seed(seed)
        expected = 0.3 * pair_loss(one, other, margin=0.2, nce=0.5, pool=pool, rng=rng)
        assert found == pytest.approx(expected, rel=0, abs=1e-6)
        counts.append(len(pairs))
    assert {0, 1, 2} <= set(counts) and max(counts) > (2 if threshold > 0.5 else 3)


def test_no_pair_above_the_threshold(model: VideoTextModel, step_of: StepOf) -> None:
    sentences, moments = torch.eye(2).requires_grad_(), torch.eye(2).roll(1, 0)[:, None] * 0.5 + 1
    step = step_of(sentences, moments, torch.tensor([0, 1]))
    loss = ice.build(Options(threshold=1.0), model)(model, step)
    loss.backward()
    assert loss.item() == 0 and sentences.grad is not None and not sentences.grad.any()
    assert _term(model, step, threshold=-1.0) > 0


def test_one_video_has_no_moments_of_others(model: VideoTextModel, step_of: StepOf) -> None:
    step = step_of(torch.eye(3), torch.eye(3)[None], torch.zeros(3, dtype=torch.int64))
    assert _term(model, step, threshold=-1.0) == 0


def test_a_cosine_that_equals_the_threshold_is_not_above_it(model: VideoTextModel, step_of: StepOf) -> None:
    sentences = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    moments = torch.tensor([[[0.0, 2.0]], [[3.0, 0.0]]])  # each video's moment is the other query's, with a cosine of 1
    step = step_of(sentences, moments, torch.tensor([0, 1]))
    settings = {"margin": 2.0}
    assert _term(model, step, threshold=1.0, contrast=settings) == 0
    assert _term(model, step, threshold=0.99, contrast=settings) > 0


def test_of_equal_similarities_the_first_counts() -> None:
    rows, columns = correlated(torch.tensor([[0.9, 0.9, 0.1], [0.9, 0.9, 0.1], [0.2, 0.2, 0.5]]), 0.0)
    assert rows.tolist() == [0, 2] and columns.tolist() == [0, 2]
    rows, columns = correlated(torch.full((3, 4), 0.7), 0.4)
    assert rows.tolist() == [0] and columns.tolist() == [0]


def test_a_gradient_reaches_the_chosen_alone(model: VideoTextModel, step_of: StepOf) -> None:
    sentences = torch.tensor([[1.0, 0.2], [0.2, 1.0], [-1.0, -1.0]]).requires_grad_()
    moments = torch.tensor([[[0.1, 1.0], [-1.0, 0.5]], [[1.0, 0.1], [0.5, -1.0]]]).requires_grad_()
    step = step_of(sentences, moments, torch.tensor([0, 1, 1]))
    settings = {"threshold": 0.4, "contrast": {"margin": 2.0}}
    ice.build(build_settings(Options, settings, where="ice"), model)(model, step).backward()
    assert sentences.grad is not None and moments.grad is not None
    assert sentences.grad.abs().sum(-1).gt(0).tolist() == [True, True, False]
    assert moments.grad.abs().sum(-1).gt(0).tolist() == [[True, False], [True, False]]


def test_every_switch_changes_what_it_says(model: VideoTextModel, step_of: StepOf) -> None:
    generator = torch.Generator().manual_seed(4)
    sentences, moments = torch.randn(30, 3, generator=generator), torch.randn(10, 8, 3, generator=generator)
    step = step_of(sentences, moments, torch.arange(30) % 10)

    def term(**settings: Any) -> float:
        return _term(model, replace(step, rng=torch.Generator().manual_seed(0)), **settings)

    plain = term()
    assert plain > 0 and term(weight=0.3) == pytest.approx(3 * plain) and term(weight=0) == 0
    assert term(threshold=0.99) != plain
    triplet, both = term(contrast={"nce": 0.0}), term(contrast={"nce": 1.0})
    assert term(contrast={"nce": 0.5}) == pytest.approx((triplet + both) / 2) and both > triplet
    assert term(contrast={"margin": 0.5}) > plain
    assert term(contrast={"hard_from_epoch": 0, "hard_pool": 1}) > plain


def test_a_model_without_moments_is_refused(model: VideoTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model), "gives", frozenset({"frames"}))
    with pytest.raises(ConfigurationError, match=r"ice cannot be added .*no moments \(they have: frames\)"):
        ice.build(Options(), model)


@pytest.mark.parametrize("settings", [{"weight": -1.0}, {"threshold": 1.5}, {"weight": float("inf")}])
def test_options_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} is"):
        build_settings(Options, settings, where="ice")
