"""What AMDNet computes: spans, masks, its two readings. Against the released code: ``test_released.py``."""

from typing import Any

import pytest
import torch
from torch import Tensor

from prvr.train.interface import VideoCode
from prvr.train.models import amdnet
from prvr.train.models.amdnet import AmdNet, Options, span_masks

FRAMES, MASK = torch.zeros(3, 1, 6), torch.ones(3, 1, dtype=torch.bool)  # not read


def _model(**settings: Any) -> AmdNet:
    """With weights ten times the initial ones, so that spans differ."""
    model = amdnet.build(Options(**{"hidden": 16, **settings}), frame_width=6, word_width=5).eval()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def _clips() -> Tensor:
    return torch.randn(3, 32, 6, generator=torch.Generator().manual_seed(1))


def test_the_papers_count_of_parameters() -> None:
    """0.89M, with CLIP's features (section IV-C)."""
    for variant in ("released", "paper"):
        model = amdnet.build(Options(variant=variant), frame_width=512, word_width=512)
        assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 2) == 0.89


@torch.no_grad()
def test_the_two_readings_differ_in_where_spans_come_from_and_what_comes_out() -> None:
    released, paper = _model(), _model(variant="paper")
    paper.load_state_dict(released.state_dict())
    projected = released.position(released.clips_in(_clips()))
    plain = released.plain(projected)
    for model, source in ((released, projected), (paper, plain)):
        video = model.encode_video(FRAMES, MASK, _clips())
        summary = model.summary(model.summary_norm(source.mean(1)))
        torch.testing.assert_close(video.global_, summary)
        torch.testing.assert_close(video.anchors.flatten(1), model.anchors(summary).sigmoid())
        torch.testing.assert_close(video.span_features, video.spans @ source)
        masked = model.masked(plain, None, video.spans[:, :, None])
        torch.testing.assert_close(video.moments, masked if model is paper else torch.stack([plain, masked]).mean(0))


@torch.no_grad()
def test_each_head_sees_the_video_through_its_own_span() -> None:
    model = _model()
    video = model.encode_video(FRAMES, MASK, _clips())
    plain = model.plain(model.position(model.clips_in(_clips())))
    attention = model.masked.attention
    query, key, value = (part(plain).chunk(4, -1)[2] for part in (attention.query, attention.key, attention.value))
    expected = ((query @ key.mT / 2) * video.spans[:, 2, None]).softmax(-1) @ value
    torch.testing.assert_close(attention(plain, None, video.spans[:, :, None])[..., 8:12], expected)


@pytest.mark.parametrize("window", amdnet.WINDOWS)
def test_masks_are_around_their_centers_and_teach_the_anchors(window: str) -> None:
    centers = torch.tensor([[0.5, 0.0, 0.81]], requires_grad=True)
    widths = torch.tensor([[0.4, 0.01, 0.2]], requires_grad=True)
    masks = span_masks(centers, widths, 11, window)
    assert masks.shape == (1, 3, 11)
    assert masks.argmax(-1)[0, 1:].tolist() == [0, 8]
    torch.testing.assert_close(masks.amax(-1), torch.ones(1, 3))
    if window != "gaussian":  # their foot is the width: 0.3 to 0.7, but for rounding
        assert masks[0, 0, [0, 1, 2, 8, 9, 10]].eq(0).all() and masks[0, 0, 4:7].gt(0).all()
        assert masks[0, 1].tolist() == [1] + 10 * [0]
    if window == "triangular":
        torch.testing.assert_close(masks[0, 0, 4:7], torch.tensor([0.5, 1.0, 0.5]))
    if window == "rectangular":
        assert set(masks.flatten().tolist()) == {0.0, 1.0}
    (masks[0, 0] * torch.arange(11)).sum().backward()  # type: ignore[no-untyped-call]
    assert centers.grad is not None and centers.grad[0, 0] > 0


@pytest.mark.parametrize("variant", amdnet.VARIANTS)
@pytest.mark.parametrize("window", amdnet.WINDOWS)
def test_a_gradient_reaches_every_parameter(variant: str, window: str) -> None:
    """In every reading; of a key's bias, which cancels in the softmax, none can."""
    model = _model(variant=variant, window=window)
    text = model.encode_text(torch.randn(3, 1, 5), torch.ones(3, 1, dtype=torch.bool))
    branch = model.training_scores(text, model.encode_video(FRAMES, MASK, _clips()), torch.arange(3))["clip"]
    branch.dot.square().sum().backward()  # type: ignore[no-untyped-call]
    unreached = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-7]
    assert {name for name in unreached if not name.endswith("key.bias")} == set()


def test_a_query_of_several_words_is_their_mean() -> None:
    model = _model()
    words, mask = torch.randn(2, 4, 5), torch.tensor([[True, True, False, False], [True] * 4])
    text = model.encode_text(words, mask)
    mean = torch.stack([words[0, :2].mean(0), words[1].mean(0)])
    torch.testing.assert_close(text.sentence, model.words(mean))
    single = model.encode_text(mean[:, None], torch.ones(2, 1, dtype=torch.bool))
    torch.testing.assert_close(single.sentence, text.sentence)
    empty = model.encode_text(words, torch.zeros_like(mask))
    assert empty.sentence.isfinite().all()


def test_inputs_of_another_shape_are_refused() -> None:
    model = _model()
    with pytest.raises(ValueError, match="8 clips a video, but the model takes 32"):
        model.encode_video(FRAMES, MASK, _clips()[:, :8])
    text = model.encode_text(torch.randn(1, 1, 5), torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(TypeError, match="not a VideoCode"):
        model.score(text, VideoCode(None, None, None, None))
