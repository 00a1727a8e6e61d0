"""What GMMFormer v2 computes, written plainly. Against the released code: ``test_released.py``."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from prvr.train.interface import VideoCode
from prvr.train.models import gmmformer_v2
from prvr.train.models.gmmformer_v2 import Consolidation, GmmFormerV2, Options


def _model(**settings: Any) -> GmmFormerV2:
    """With weights ten times the initial ones, so that attention prefers some frames."""
    model = gmmformer_v2.build(Options(**{"hidden": 16, **settings}), frame_width=6, word_width=5).eval()
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


@torch.no_grad()
def test_consolidation_is_a_cross_attention_of_the_token() -> None:
    """Keys and values of all places made one by one, where the module asks one question and pools first."""
    torch.manual_seed(0)
    module = Consolidation(width=8, heads=2, places=9, temperature=0.5, dropout=0.0)
    token, codings = torch.randn(8), [torch.randn(3, 5, 8) for _ in range(4)]
    mask = torch.arange(5) < torch.tensor([[5], [2], [1]])
    tokens = []
    for coding in codings:
        query, key, value = module.query(token).view(2, 4), module.key(coding), module.value(coding)
        heads = []
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            logits = (key[..., part] @ query[head] / math.sqrt(4)).masked_fill(~mask, -math.inf)
            heads.append((logits.softmax(-1)[..., None] * value[..., part]).sum(1))
        tokens.append(module.refine(token.expand(3, 8), torch.cat(heads, -1)))
    logits = module.places(functional.relu(module.hidden(torch.stack(tokens, 1)))) / 0.5
    torch.testing.assert_close(module(token, codings, mask), logits[..., :5].softmax(1).mT)


def test_consolidation_under_dropout_is_unbiased_in_its_values() -> None:
    """A value's bias counts as often as its place was kept."""
    torch.manual_seed(0)
    module = Consolidation(width=8, heads=2, places=5, temperature=1.0, dropout=0.5)
    pooled, total = module._read(module._probes(torch.randn(8)), torch.ones(40, 5, 8), None)
    torch.testing.assert_close(pooled, total[..., None].expand_as(pooled))
    assert total.std() > 0.1 and total.mean().item() == pytest.approx(1, abs=0.2)


@torch.no_grad()
def test_a_short_video_is_padded_with_frames_that_are_like_nothing() -> None:
    """Its frame score is not negative; a video with all its frames has the score that it has."""
    model = _model(max_frames=32)
    text = model.encode_text(torch.randn(40, 3, 5), torch.ones(40, 3, dtype=torch.bool))
    video = model.encode_video(*_videos(32, 4, 31))
    frame = model.score(text, video).branches["frame"]
    unit = functional.normalize(text.sentence, dim=-1)
    best = torch.stack([(unit @ functional.normalize(codes, dim=-1).T).amax(1) for codes in video.frames], 1)
    assert (best[:, 1:] <= 0).any() or (frame[:, 1:] == 0).any()
    torch.testing.assert_close(frame[:, 0], best[:, 0])
    torch.testing.assert_close(frame[:, 1:], best[:, 1:].clamp_min(0))
    assert torch.equal(video.frames[1, 4:], torch.zeros(28, 16))


@torch.no_grad()
def test_windows_are_of_the_longest_video_that_the_model_takes() -> None:
    frames, mask, clips = _videos(9)
    short, long = _model(max_frames=128), _model(max_frames=32)
    # The same weights but for the tables, which are cut.
    state = {
        name: tensor[:32] if tensor.shape[0] == 128 else tensor
        for name, tensor in short.state_dict().items()
        if name != "frames.consolidate.places.weight"
    }
    state["frames.consolidate.places.weight"] = short.frames.consolidate.places.weight[:32]
    long.load_state_dict(state)
    one, other = short.encode_video(frames, mask, clips), long.encode_video(frames, mask, clips)
    torch.testing.assert_close(one.moments, other.moments)
    assert not torch.allclose(one.frames, other.frames, atol=1e-3)


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
