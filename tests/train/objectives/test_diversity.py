"""The diversity losses by hand, and where there is nothing to keep apart. Released values: ``models/test_released.py``."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from prvr.datasets.batch import Batch
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train import models, objectives
from prvr.train.interface import Step, TextCode, VideoCode, VideoTextModel
from prvr.train.models.amdnet import AmdNetVideo
from prvr.train.objectives import diversity
from prvr.train.objectives.diversity import (
    Options,
    optimal_matching,
    query_diversity,
    relevance,
    span_diversity,
)

OWNER = torch.tensor([2, 0, 2, 0, 1, 2])  # a video's queries need not stand together


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def _cosine(one: Tensor, other: Tensor) -> float:
    return functional.cosine_similarity(one, other, dim=0).item()


def _model(name: str) -> VideoTextModel:
    module = models.load(name)
    model: VideoTextModel = module.build(module.Options(hidden=16), frame_width=4, word_width=4)
    return model


def _step(sentences: Tensor, video: VideoCode, owner: Tensor) -> Step:
    """A step that has codes; the losses read nothing else but the owners."""
    queries, videos = len(owner), int(owner.max()) + 1
    ones = torch.ones(queries, 1, dtype=torch.bool)
    frames, clips, words = torch.zeros(videos, 1, 4), torch.zeros(videos, 2, 4), torch.zeros(queries, 1, 4)
    batch = Batch(frames, torch.ones(videos, 1, dtype=torch.bool), clips, words, ones, owner)
    return Step(batch, TextCode(sentences[:, None], ones, sentences), video, {}, 0, torch.Generator())


def test_query_diversity_by_hand() -> None:
    sentences, margin, scale, focus = _random(6, 3), 0.15, 4.0, 2.0
    joint = pairwise = 0.0
    for i in range(6):
        others = [j for j in range(6) if j != i and OWNER[i] == OWNER[j]]
        cosines = [_cosine(sentences[i], sentences[j]) for j in others]
        joint += math.log(1 + sum(math.exp(scale * (cosine + margin)) for cosine in cosines))
        pairwise += sum((1 + c) ** focus * math.log(1 + math.exp(scale * (c + margin))) for c in cosines)
    one = query_diversity(sentences, OWNER, margin=margin, scale=scale, focus=None)
    other = query_diversity(sentences, OWNER, margin=margin, scale=scale, focus=focus)
    assert one.item() == pytest.approx(joint / 6, rel=1e-5)
    assert other.item() == pytest.approx(pairwise / 6, rel=1e-5)


@pytest.mark.parametrize("focus", [None, 1.0, 0.5])
def test_queries_of_different_videos_are_left_alone(focus: float | None) -> None:
    sentences = _random(6, 3).requires_grad_()
    query_diversity(sentences, torch.arange(6), margin=0.2, scale=32, focus=focus).backward()  # type: ignore[no-untyped-call]
    assert sentences.grad is not None and torch.equal(sentences.grad, torch.zeros(6, 3))
    alike = torch.ones(2, 3, requires_grad=True)
    loss = query_diversity(alike, torch.zeros(2, dtype=torch.int64), margin=0.2, scale=1000, focus=focus)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite() and loss > 1000 and alike.grad is not None and alike.grad.isfinite().all()


@pytest.mark.parametrize("clips", [4, 2])
def test_matching_is_the_best_of_all(clips: int) -> None:
    """Every assignment of different clips, tried out; with two clips, one of three queries goes without."""
    sentences, moments = _random(6, 5), _random(3, clips, 5)
    best = []
    for video in (0, 2):
        own = [q for q in range(6) if OWNER[q] == video]
        size = min(len(own), clips)
        choices = [
            [_cosine(sentences[q], moments[video, c]) for q, c in zip(queries, columns, strict=True)]
            for queries in itertools.combinations(own, size)
            for columns in itertools.permutations(range(clips), size)
        ]
        best += max(choices, key=sum)
    assert optimal_matching(sentences, moments, OWNER).item() == pytest.approx(1 - sum(best) / len(best), rel=1e-5)


def test_matching_teaches_the_matched_alone() -> None:
    sentences, moments = _random(6, 5).requires_grad_(), _random(3, 4, 5).requires_grad_()
    optimal_matching(sentences, moments, OWNER).backward()  # type: ignore[no-untyped-call]
    assert sentences.grad is not None and moments.grad is not None
    assert sentences.grad.abs().sum(1).ne(0).tolist() == [True, True, True, True, False, True]
    assert moments.grad.abs().sum(2).ne(0).sum(1).tolist() == [2, 0, 3]


def test_without_a_video_of_two_queries_there_is_nothing_to_match() -> None:
    assert optimal_matching(_random(3, 5), _random(3, 4, 5), torch.arange(3)) == 0


def test_span_diversity_by_hand() -> None:
    spans = torch.tensor([[[1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 1.0, 0.5]], [[1.0, 0, 0, 0], [0, 0, 0, 1.0]]])
    # Of the first video P P^T is [[1/2, 1/8], [1/8, 3/8]], of the second the identity.
    first = (0.15 - 0.5) ** 2 + 2 * 0.125**2 + (0.15 - 0.375) ** 2
    assert span_diversity(spans, concentration=0.15).item() == pytest.approx((first + 2 * 0.85**2) / 2)


def test_relevance_by_hand() -> None:
    sentences = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    features = torch.tensor([[[0.0, 1.0], [3.0, 4.0]], [[0.0, 5.0], [1.0, 0.0]]])
    whole = torch.tensor([[4.0, 3.0], [1.0, 1.0]])
    losses = [0.02 + 0.8 - 0.6, 0.0]  # the second's best span is right by far
    assert relevance(sentences, features, whole, margin=0.02).item() == pytest.approx(sum(losses) / 2)


def test_terms_are_those_with_a_weight_times_it() -> None:
    sentences = _random(6, 5)
    video = AmdNetVideo(
        _random(3, 4, 5), None, _random(3, 5), None, torch.rand(3, 2, 2), torch.rand(3, 2, 4), _random(3, 2, 5)
    )
    step = _step(sentences, video, OWNER)
    model = _model("amdnet")
    options = Options(query=0.5, matching=0.25, spans=2.0, relevance=25.0, span_concentration=0.1, relevance_margin=1.0)
    terms = diversity.build(options, model).terms(model, step)
    plain = {
        "query_diversity": 0.5 * query_diversity(sentences, OWNER, margin=0.2, scale=32, focus=None),
        "matching": 0.25 * optimal_matching(sentences, video.moments, OWNER),
        "span_diversity": 2 * span_diversity(video.spans, concentration=0.1),
        "relevance": 25 * relevance(sentences, video.span_features[OWNER], video.global_[OWNER], margin=1.0),
    }
    assert terms == plain
    assert diversity.build(Options(query=0, spans=1), model).terms(model, step).keys() == {"span_diversity"}
    focused = diversity.build(Options(query_form="pairwise", query_focus=3.0), model).terms(model, step)
    wanted = 0.015 * query_diversity(sentences, OWNER, margin=0.2, scale=32, focus=3.0)
    assert focused == {"query_diversity": wanted}


@pytest.mark.parametrize("name", models.names())
def test_a_model_that_does_not_give_what_a_term_needs_is_refused(name: str) -> None:
    model = _model(name)
    needs: dict[str, set[str]] = {"query": set(), "matching": {"moments"}, "spans": {"spans"}, "relevance": {"spans"}}
    for term, parts in needs.items():
        settings: dict[str, Any] = {"query": 0.0, term: 1.0}
        options = Options(**settings)
        if parts <= model.gives:
            assert diversity.build(options, model).parts
        else:
            with pytest.raises(ConfigurationError, match=f"diversity cannot be added .* have no {parts.pop()}"):
                diversity.build(options, model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query": -1.0}, "query is -1.0, but must be finite and not negative"),
        ({"query_scale": math.inf}, "query_scale is inf"),
        ({"query": 0.0}, "are all 0: nothing to compute"),
    ],
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options(**settings)


def test_a_form_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(UnknownName, match="did you mean 'pairwise'"):
        Options(query_form="pairwize")


def test_it_is_found_by_its_name() -> None:
    assert objectives.load("diversity") is diversity
