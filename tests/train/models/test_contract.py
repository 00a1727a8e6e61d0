"""What every model owes, whatever its paper: over ``names()`` and the other variants, on the CPU, with random weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from prvr.datasets.batch import Batch
from prvr.manifests.errors import UnknownName
from prvr.manifests.settings import build as build_settings
from prvr.train import models, objectives
from prvr.train.interface import Scores, Step, VideoTextModel
from prvr.train.layers import SelfAttention
from prvr.train.models import ms_sl

FRAME_WIDTH, WORD_WIDTH, CLIPS = 24, 20, 32
HIDDEN = 32

VARIANTS = (
    *(f"ms-sl variant={variant}" for variant in ms_sl.VARIANTS[1:]),
    *(f"ms-sl encoder={encoder}" for encoder in ms_sl.ENCODERS[1:]),
    "ms-sl variant=paper encoder=gru",
    "amdnet variant=paper",
)

pytestmark = pytest.mark.parametrize("name", [*models.names(), *VARIANTS])


def _model(name: str, seed: int = 0) -> VideoTextModel:
    """Small and in evaluation mode, with weights large enough that nothing comes out nearly equal."""
    base, *settings = name.split()
    module = models.load(base)
    chosen = dict(setting.split("=") for setting in settings)
    options = build_settings(module.Options, {"hidden": HIDDEN, **chosen}, where=base)
    model: VideoTextModel = module.build(options, frame_width=FRAME_WIDTH, word_width=WORD_WIDTH)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model.eval()


def _batch(frames: tuple[int, ...] = (9, 30, 1, 17), words: tuple[int, ...] = (5, 1, 8, 3, 6, 2)) -> Batch:
    """Videos and queries of these lengths; query q belongs to video q modulo V."""
    generator = torch.Generator().manual_seed(1)

    def padded(lengths: tuple[int, ...], width: int) -> tuple[Tensor, Tensor]:
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return torch.randn(*mask.shape, width, generator=generator) * mask[..., None], mask

    frame_values, frame_mask = padded(frames, FRAME_WIDTH)
    word_values, word_mask = padded(words, WORD_WIDTH)
    clips = torch.randn(len(frames), CLIPS, FRAME_WIDTH, generator=generator)
    return Batch(frame_values, frame_mask, clips, word_values, word_mask, torch.arange(len(words)) % len(frames))


def _scores(model: VideoTextModel, batch: Batch) -> Scores:
    with torch.no_grad():
        text = model.encode_text(batch.words, batch.word_mask)
        return model.score(text, model.encode_video(batch.frames, batch.frame_mask, batch.clips))


def _step(model: VideoTextModel, batch: Batch, epoch: int = 0) -> Step:
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    scores = model.training_scores(text, video, batch.owner)
    return Step(batch, text, video, scores, epoch, torch.Generator().manual_seed(2))


def _loss(model: VideoTextModel, step: Step) -> Tensor:
    """What the model's paper trains it with."""
    total = torch.zeros(())
    for name, settings in model.default_objectives.items():
        module = objectives.load(name)
        total = total + module.build(build_settings(module.Options, settings, where=name), model)(model, step)
    return total


def _assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def _assert_same(one: Scores, other: Scores) -> None:
    assert one.branches.keys() == other.branches.keys()
    for branch, score in one.branches.items():
        _assert_close(score, other.branches[branch])


def test_a_setting_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(UnknownName):
        build_settings(models.load(name.split()[0]).Options, {"hiden": HIDDEN}, where=name)


def test_scores_are_cosines_of_every_pair_and_differ(name: str) -> None:
    scores = _scores(_model(name), _batch())
    assert scores.branches.keys() == scores.weights.keys()
    for score in scores.branches.values():
        assert score.shape == (6, 4)
        assert score.abs().max() <= 1 + 1e-5
        assert score.std() > 1e-3
    fused = torch.zeros(6, 4)
    for branch, score in scores.branches.items():
        fused += scores.weights[branch] * score
    _assert_close(scores.fused, fused)


def test_codes_have_the_shapes_of_the_interface(name: str) -> None:
    model, batch = _model(name), _batch()
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    assert text.words.shape[:2] == text.mask.shape == (6, 8) and text.mask.dtype == torch.bool
    assert text.sentence.shape == (6, text.words.shape[-1])
    assert video.moments is None or video.moments.shape[:2] == (4, CLIPS)
    assert (video.frames is None) == (video.frame_mask is None)
    if video.frames is not None and video.frame_mask is not None:
        assert video.frames.shape[:2] == video.frame_mask.shape
    assert video.global_ is None or len(video.global_) == 4


def test_one_video_and_one_query(name: str) -> None:
    model, batch = _model(name), _batch(frames=(1,), words=(1,))
    scores = _scores(model, batch)
    for score in scores.branches.values():
        assert score.shape == (1, 1) and score.isfinite().all()
    for epoch in (0, 1000):
        loss = _loss(model, _step(model, batch, epoch))
        assert loss.shape == () and loss.isfinite()
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_a_score_depends_on_its_query_and_video_alone(name: str) -> None:
    """Padding, the company in the batch and how it is cut change nothing: each pair alone, cut to its own length.
    A model to which padding matters keeps it."""
    model, batch = _model(name), _batch()
    together = _scores(model, batch)
    for query, words in enumerate(batch.word_mask.sum(1).tolist()):
        for video, real in enumerate(batch.frame_mask.sum(1).tolist()):
            frames = batch.frame_mask.shape[1] if model.padding_matters else real
            alone = Batch(
                batch.frames[video : video + 1, :frames],
                batch.frame_mask[video : video + 1, :frames],
                batch.clips[video : video + 1],
                batch.words[query : query + 1, :words],
                batch.word_mask[query : query + 1, :words],
                torch.zeros(1, dtype=torch.int64),
            )
            for branch, score in _scores(model, alone).branches.items():
                _assert_close(score[0, 0], together.branches[branch][query, video])


def test_more_padding_changes_nothing(name: str) -> None:
    """But where a model says that it does, and why: then it must."""
    model, batch = _model(name), _batch()
    words, word_mask = functional.pad(batch.words, (0, 0, 0, 5)), functional.pad(batch.word_mask, (0, 5))
    longer = replace(batch, words=words, word_mask=word_mask)
    _assert_same(_scores(model, longer), _scores(model, batch))
    frames, frame_mask = functional.pad(batch.frames, (0, 0, 0, 5)), functional.pad(batch.frame_mask, (0, 5))
    longer = replace(batch, frames=frames, frame_mask=frame_mask)
    if model.padding_matters:
        assert (_scores(model, longer).fused - _scores(model, batch).fused).abs().max() > 1e-4, model.padding_matters
    else:
        _assert_same(_scores(model, longer), _scores(model, batch))


def test_order_of_videos_and_queries_is_order_of_scores(name: str) -> None:
    model, batch = _model(name), _batch()
    videos, queries = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 2, 0, 4, 1, 3])
    permuted = Batch(
        batch.frames[videos],
        batch.frame_mask[videos],
        batch.clips[videos],
        batch.words[queries],
        batch.word_mask[queries],
        torch.argsort(videos)[batch.owner[queries]],
    )
    expected = _scores(model, batch)
    branches = {branch: score[queries][:, videos] for branch, score in expected.branches.items()}
    _assert_same(_scores(model, permuted), replace(expected, branches=branches))


def test_training_branches_are_the_scored_ones(name: str) -> None:
    """In evaluation mode there is no dropout: an unpaired cosine is the score, a paired one is on its diagonal."""
    model, batch = _model(name), _batch()
    scores, step = _scores(model, batch), _step(model, batch)
    assert step.scores.keys() == scores.branches.keys()
    for name_, branch in step.scores.items():
        score = scores.branches[name_]
        assert branch.cosine.shape == branch.dot.shape == ((6, 6) if branch.paired else (6, 4))
        own = score.gather(1, batch.owner[:, None]).squeeze(1)
        cosine, wanted = (branch.cosine.diagonal(), own) if branch.paired else (branch.cosine, score)
        _assert_close(cosine.detach(), wanted)


def test_a_gradient_reaches_every_parameter(name: str) -> None:
    """Exempt: the bias of attention's keys, which adds the same to all logits of a row and so cancels in the softmax.
    Of a position table, the rows past the longest sequence have none; its others do."""
    model = _model(name)
    _loss(model, _step(model, _batch())).backward()  # type: ignore[no-untyped-call]
    exempt = {id(module.key.bias) for module in model.modules() if isinstance(module, SelfAttention)}
    unreached = [
        path
        for path, parameter in model.named_parameters()
        if id(parameter) not in exempt and (parameter.grad is None or not parameter.grad.abs().max() > 1e-7)
    ]
    assert not unreached


def test_what_is_saved_is_what_is_loaded(name: str, tmp_path: Path) -> None:
    model, other = _model(name), _model(name, seed=3)
    batch = _batch()
    assert not torch.allclose(_scores(model, batch).fused, _scores(other, batch).fused)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(_scores(model, batch).fused, _scores(other, batch).fused)
