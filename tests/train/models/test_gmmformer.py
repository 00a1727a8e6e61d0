"""What GMMFormer computes, one video at a time. Against the released code: ``test_released.py``."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from prvr.train.interface import VideoCode
from prvr.train.layers import AttentionBlock
from prvr.train.models import gmmformer
from prvr.train.models.gmmformer import GaussianBlock, GmmFormer, Options


def _model(**settings: Any) -> GmmFormer:
    """With weights ten times the initial ones, so that attention prefers some frames."""
    model = gmmformer.build(Options(**{"hidden": 16, **settings}), frame_width=6, word_width=5).eval()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def _videos(*lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    frames = torch.randn(len(lengths), max(lengths), 6, generator=generator)
    return frames, mask, torch.randn(len(lengths), 32, 6, generator=generator)


def _by_hand(model: GmmFormer, frames: Tensor, padded: int) -> Tensor:
    """The frames [F, E] of one video, as in a batch of that padded length: head by head, place by place."""
    sequence: Tensor = model.frames.position(model.frames.project(frames[None]))[0]
    for block in model.frames.blocks:
        assert isinstance(block, GaussianBlock)
        outputs = []
        for attention, width in zip(block.attentions, gmmformer.WIDTHS, strict=True):
            assert isinstance(attention, AttentionBlock)
            heads = []
            parts = (attention.attention.query, attention.attention.key, attention.attention.value)
            for query, key, value in zip(*(part(sequence).chunk(4, -1) for part in parts), strict=True):
                logits = query @ key.T / math.sqrt(4)
                if width is not None:
                    deviation = width / 9
                    for i in range(len(frames)):
                        row = torch.exp(-((torch.linspace(0, 1, padded) - i / padded) ** 2) / (2 * deviation**2))
                        logits[i] = logits[i] * (row / row.max())[: len(frames)]
                heads.append(logits.softmax(-1) @ value)
            outputs.append(attention.norm(sequence + attention.output(torch.cat(heads, -1))))
        sequence = torch.stack(outputs).mean(0)
    return sequence


@torch.no_grad()
def test_frames_are_under_windows_of_the_padded_length() -> None:
    model = _model()
    frames, mask, clips = _videos(9, 30, 3)
    video = model.encode_video(frames, mask, clips)
    for row, length in enumerate((9, 30, 3)):
        expected = _by_hand(model, frames[row, :length], padded=30)
        torch.testing.assert_close(video.frames[row, :length], expected, rtol=1e-4, atol=1e-5)
    pooled = model.video_pooling(_by_hand(model, frames[2, :3], padded=30)[None])
    torch.testing.assert_close(video.global_[2:], pooled, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_is_padded_may_hold_anything() -> None:
    model = _model()
    frames, mask, clips = _videos(9, 30, 3)
    dirty, clean = model.encode_video(frames, mask, clips), model.encode_video(frames * mask[..., None], mask, clips)
    torch.testing.assert_close(dirty.global_, clean.global_)


@torch.no_grad()
def test_a_batch_of_one_frame_has_windows_too() -> None:
    """Narrow windows over very few places: a density of 0 over a density of 0 in the released code."""
    for length in (1, 2, 3):
        video = _model().encode_video(*_videos(length))
        assert video.global_.isfinite().all()


def test_words_past_the_last_are_not_read() -> None:
    model = _model(max_words=4)
    words, mask = torch.randn(2, 7, 5), torch.ones(2, 7, dtype=torch.bool)
    text = model.encode_text(words, mask)
    assert text.words.shape[:2] == text.mask.shape == (2, 4)
    torch.testing.assert_close(text.sentence, model.encode_text(words[:, :4], mask[:, :4]).sentence)


def test_inputs_of_another_shape_are_refused() -> None:
    model = _model(clips=8, max_frames=16)
    frames, mask, clips = _videos(20)
    with pytest.raises(ValueError, match="32 clips a video, but the model takes 8"):
        model.encode_video(frames, mask, clips)
    with pytest.raises(ValueError, match="a sequence of 20, but the position table has 16 rows"):
        model.encode_video(frames, mask, clips[:, :8])
    text = model.encode_text(torch.randn(1, 2, 5), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(TypeError, match="not a VideoCode"):
        model.score(text, VideoCode(None, None, None, None))


def test_weights_of_the_branches_are_options() -> None:
    model = _model(clip_weight=0.5, frame_weight=0.25)
    text = model.encode_text(torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.bool))
    scores = model.score(text, model.encode_video(*_videos(4, 5)))
    torch.testing.assert_close(scores.fused, 0.5 * scores.branches["clip"] + 0.25 * scores.branches["frame"])
