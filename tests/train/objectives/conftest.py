"""Made steps for the objectives of Ren et al., and their losses L^trip and L^nce once more, in NumPy and pair by pair."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from prvr.datasets.batch import Batch
from prvr.train.interface import Step, TextCode, VideoCode

type Floats = NDArray[np.float64]


@pytest.fixture(scope="session")
def step_of() -> Callable[..., Step]:
    """A function that makes a step of codes: ``sentences`` [Q, D], ``moments`` [V, C, D], ``owner`` [Q], ``global_`` [V, D]."""

    def make(
        sentences: Tensor,
        moments: Tensor,
        owner: Tensor,
        global_: Tensor | None = None,
        *,
        epoch: int = 0,
        seed: int = 0,
    ) -> Step:
        videos, clips = moments.shape[:2]
        ones = torch.ones(len(owner), 1, dtype=torch.bool)
        frames = torch.zeros(videos, 1, 1)
        words = torch.zeros(len(owner), 1, 1)
        batch = Batch(
            frames, torch.ones(videos, 1, dtype=torch.bool), torch.zeros(videos, clips, 1), words, ones, owner
        )
        video = VideoCode(moments, None, global_, None)
        text = TextCode(sentences[:, None], ones, sentences)
        return Step(batch, text, video, {}, epoch, torch.Generator().manual_seed(seed))

    return make


@pytest.fixture(scope="session")
def pair_loss() -> Callable[..., float]:
    """A function: equations 5 and 6 of v1 for N pairs; ``pool`` is None before negatives are hard."""

    def loss(one: Floats, other: Floats, *, margin: float, nce: float, pool: int | None, rng: torch.Generator) -> float:
        count = len(one)
        if count < 2:
            return 0.0
        highest = count - 1 if pool is None else min(pool, count - 1)
        total = 0.0
        for these, those in ((one, other), (other, one)):
            places = torch.randint(0, highest, (count,), generator=rng).tolist()
            for n in range(count):
                positive = _cosine(these[n], those[n])
                negatives = sorted((_cosine(these[n], those[m]) for m in range(count) if m != n), reverse=True)
                total += max(0.0, margin + negatives[places[n]] - positive) / count
                products = np.array([these[n] @ those[m] for m in range(count)])
                total -= nce * np.log(np.exp(products[n]) / np.exp(products).sum()) / count
        return total

    return loss


def _cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / np.sqrt(one @ one) / np.sqrt(other @ other))
