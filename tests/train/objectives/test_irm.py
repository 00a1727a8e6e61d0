"""IRM against section 3.4 of Ren et al., once more in NumPy: query by query."""

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
from prvr.train.objectives import irm
from prvr.train.objectives.irm import Irm, Options

type Floats = NDArray[np.float64]
type StepOf = Callable[..., Step]
type PairLoss = Callable[..., float]

WIDTH = 4


@pytest.fixture(scope="module")
def model() -> VideoTextModel:
    return dual_branch.build(dual_branch.Options(hidden=WIDTH), frame_width=4, word_width=4)


def _irm(model: VideoTextModel, seed: int = 0, **settings: Any) -> Irm:
    """In double precision, with a matrix and bias that are large enough to matter."""
    module = irm.build(build_settings(Options, settings, where="irm"), model).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def _cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / np.sqrt(one @ one) / np.sqrt(other @ other))


def _redundant(
    module: Irm, sentences: Floats, moments: Floats, owner: list[int], global_: Floats | None
) -> list[tuple[Floats, Floats, Floats]]:
    """m_k, r_v and r_q of each query: equations 2 and 5."""
    matrix, bias = module.bridge.weight.detach().numpy(), module.bridge.bias.detach().numpy()
    found = []
    for query, video in zip(sentences, owner, strict=True):
        cosines = [_cosine(moment, query) for moment in moments[video]]
        key = moments[video][cosines.index(max(cosines))]
        whole = moments[video].mean(axis=0) if global_ is None else global_[video]
        found.append((key, matrix @ (whole - key) + bias, matrix @ (whole - query) + bias))
    return found


def _negatives(sentences: Floats, found: list[tuple[Floats, Floats, Floats]], margin: float, nce: float) -> float:
    """L_neg: each of q and m_k, against the other, with r_v and r_q for negatives."""
    total = 0.0
    for query, (key, by_video, by_query) in zip(sentences, found, strict=True):
        for anchor, positive in ((query, key), (key, query)):
            for redundant in (by_video, by_query):
                total += max(0.0, margin + _cosine(anchor, redundant) - _cosine(anchor, positive)) / 2
            scores = np.exp([anchor @ vector for vector in (positive, by_video, by_query)])
            total -= nce * float(np.log(scores[0] / scores.sum()))
    return total / len(sentences)


def _case(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Every third case repeats moments and sentences; half of them have no video vector."""
    rng = np.random.default_rng(seed)
    videos, queries, clips = rng.integers(1, 6), rng.integers(1, 9), rng.integers(1, 5)
    if seed % 3 == 2:
        sentences = np.eye(WIDTH)[rng.integers(0, WIDTH, queries)]
        moments = np.eye(WIDTH)[rng.integers(0, WIDTH, (videos, clips))]
    else:
        sentences, moments = rng.standard_normal((queries, WIDTH)), rng.standard_normal((videos, clips, WIDTH))
    owner = torch.from_numpy(rng.integers(0, videos, queries))
    global_ = torch.from_numpy(rng.standard_normal((videos, WIDTH))) if seed % 2 else None
    return torch.from_numpy(sentences), torch.from_numpy(moments), owner, global_


@pytest.mark.parametrize("epoch", [0, 20])
def test_random_cases(epoch: int, model: VideoTextModel, step_of: StepOf, pair_loss: PairLoss) -> None:
    seen = set()
    for seed in range(120):
        sentences, moments, owner, global_ = _case(seed)
        step = step_of(sentences, moments, owner, global_, epoch=epoch, seed=seed)
        contrast = {"margin": 0.2, "nce": 0.5, "hard_pool": 2, "hard_from_epoch": 20}
        module = _irm(model, seed, weight=2.0, neg=0.5, red=0.25, contrast=contrast)
        terms = {name: term.item() for name, term in module.terms(model, step).items()}
        found = _redundant(
            module, sentences.numpy(), moments.numpy(), owner.tolist(), None if global_ is None else global_.numpy()
        )
        pool, rng = (2 if epoch == 20 else None), torch.Generator().manual_seed(seed)
        by_video, by_query = np.array([row[1] for row in found]), np.array([row[2] for row in found])
        red = pair_loss(by_video, by_query, margin=0.2, nce=0.5, pool=pool, rng=rng)
        neg = _negatives(sentences.numpy(), found, 0.2, 0.5)
        assert terms["irm_neg"] == pytest.approx(2.0 * 0.5 * neg, rel=0, abs=1e-6)
        assert terms["irm_red"] == pytest.approx(2.0 * 0.25 * red, rel=0, abs=1e-6)
        seen.add((len(moments) == 1, len(owner) == 1))
    assert len(seen) == 4, "one video, one query, both and neither were among them"


def test_one_query_has_a_redundancy_to_be_told_from_but_none_to_align(model: VideoTextModel, step_of: StepOf) -> None:
    step = step_of(torch.ones(1, WIDTH), torch.ones(1, 2, WIDTH), torch.tensor([0]), torch.ones(1, WIDTH))
    terms = _irm(model).float().terms(model, step)
    assert terms["irm_red"].item() == 0 and terms["irm_neg"].isfinite()


def test_videos_without_queries_change_nothing(model: VideoTextModel, step_of: StepOf) -> None:
    sentences, moments, owner, _ = _case(0)
    more = torch.cat([moments, torch.randn(2, *moments.shape[1:], dtype=torch.float64)])
    module = _irm(model)
    one, other = (module(model, step_of(sentences, codes, owner)) for codes in (moments, more))
    assert one.item() == other.item()


@pytest.mark.parametrize(("term", "off"), [("irm_neg", {"red": 0.0}), ("irm_red", {"neg": 0.0})])
def test_each_term_alone(term: str, off: dict[str, Any], model: VideoTextModel, step_of: StepOf) -> None:
    sentences, moments, owner, global_ = _case(7)
    step = step_of(sentences, moments, owner, global_)
    both, alone = _irm(model), _irm(model, **off)
    expected = both.terms(model, replace(step, rng=torch.Generator().manual_seed(0)))[term]
    found = alone.terms(model, replace(step, rng=torch.Generator().manual_seed(0)))
    assert set(found) == {term} and found[term].item() == expected.item() > 0


def test_every_switch_changes_what_it_says(model: VideoTextModel, step_of: StepOf) -> None:
    sentences, moments, owner, global_ = _case(7)
    assert len(owner) > 2
    step = step_of(sentences, moments, owner, global_)

    def term(**settings: Any) -> float:
        loss: Tensor = _irm(model, **settings)(model, replace(step, rng=torch.Generator().manual_seed(0)))
        return loss.item()

    plain = term()
    assert term(weight=3.0) == pytest.approx(3 * plain)
    assert term(neg=2.0) - plain == pytest.approx(plain - term(neg=0.0))
    assert term(red=2.0) - plain == pytest.approx(plain - term(red=0.0))
    assert term(contrast={"nce": 1.0}) > plain and term(contrast={"margin": 0.5}) > plain
    assert term(contrast={"hard_from_epoch": 0, "hard_pool": 1}) > plain


@pytest.mark.parametrize("off", [{}, {"red": 0.0}, {"neg": 0.0}])
def test_a_gradient_reaches_all_that_takes_part(off: dict[str, Any], model: VideoTextModel, step_of: StepOf) -> None:
    generator = torch.Generator().manual_seed(0)
    sentences, moments, global_ = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((4, WIDTH), (2, 3, WIDTH), (2, WIDTH))
    )
    module = _irm(model, contrast={"margin": 2.0}, **off)
    module(model, step_of(sentences, moments, torch.tensor([0, 0, 1, 1]), global_)).backward()
    for tensor in (sentences, global_, *module.parameters()):
        assert tensor.grad is not None and tensor.grad.abs().max() > 1e-6
    assert moments.grad is not None and 2 <= moments.grad.abs().sum(-1).gt(0).sum() <= 4  # the key moments


def test_it_starts_as_the_models_do(model: VideoTextModel) -> None:
    wide = dual_branch.build(dual_branch.Options(hidden=256), frame_width=4, word_width=4)
    bridge = irm.build(Options(), wide).bridge
    assert bridge.weight.shape == (256, 256) and abs(bridge.weight.std().item() - 0.02) < 1e-3 and not bridge.bias.any()


def test_a_model_without_moments_is_refused(model: VideoTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model), "gives", frozenset({"global_"}))
    with pytest.raises(ConfigurationError, match=r"irm cannot be added .*no moments \(they have: global_\)"):
        irm.build(Options(), model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"weight": -1.0}, "weight is -1.0"), ({"neg": 0.0, "red": 0.0}, r"leave \+irm out")],
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_settings(Options, settings, where="irm")
