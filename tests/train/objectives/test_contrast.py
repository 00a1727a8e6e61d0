"""The two losses of pairs that ICE and IRM make, where there is little to contrast; their values: ``test_ice``, ``test_irm``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from prvr.manifests.errors import ConfigurationError
from prvr.train.interface import Step
from prvr.train.objectives._contrast import Contrast

type StepOf = Callable[..., Step]


@pytest.fixture
def step(step_of: StepOf) -> Step:
    return step_of(torch.ones(1, 3), torch.ones(1, 1, 3), torch.tensor([0]))


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_pairs_are_0_with_a_gradient_of_0(count: int, step: Step) -> None:
    vectors = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = Contrast(nce=1.0).of_pairs(vectors[:count], vectors[1 : 1 + count], step)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.shape == () and loss.item() == 0
    assert vectors.grad is not None and vectors.grad.abs().max() < 1e-6


def test_pairs_are_drawn_together_and_the_others_apart(step: Step) -> None:
    one = torch.eye(4)
    contrast = Contrast(nce=1.0)
    assert contrast.of_pairs(one, one, step) < contrast.of_pairs(one, one.roll(1, 0), step)
    negatives = -one[:, None]
    assert contrast.of_negatives(one, one, negatives) < contrast.of_negatives(one, -one, one[:, None])


def test_one_more_copy_of_a_negative_weighs_in_infonce_alone() -> None:
    anchor, positive = torch.eye(3), torch.eye(3).roll(1, 0)
    negatives = torch.eye(3)[:, None]
    once, twice = (Contrast(nce=0).of_negatives(anchor, positive, n) for n in (negatives, negatives.repeat(1, 2, 1)))
    torch.testing.assert_close(once, twice)
    once, twice = (Contrast(nce=1).of_negatives(anchor, positive, n) for n in (negatives, negatives.repeat(1, 2, 1)))
    assert once.item() < twice.item()


@pytest.mark.parametrize("settings", [{"margin": -0.1}, {"nce": float("nan")}, {"hard_pool": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} is"):
        Contrast(**settings)
