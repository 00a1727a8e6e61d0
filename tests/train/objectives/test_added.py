"""What ICE, IRM and TCP owe on every base that they can be added to: over ``models.names()``, on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prvr.datasets.batch import Batch
from prvr.manifests.settings import build as build_settings
from prvr.train import models, objectives
from prvr.train.interface import Objective, Step, VideoTextModel
from prvr.train.optim import decay_groups

WIDTH, CLIPS = 12, 32
NEEDS = {"ice": {"moments"}, "irm": {"moments"}, "tcp": {"moments", "frames"}}  # any of them
LOUD: dict[str, dict[str, Any]] = {
    "ice": {"threshold": -1.0, "contrast": {"margin": 2.0}},
    "irm": {"contrast": {"margin": 2.0}},
    "tcp": {},
}
"""Settings under which something is to be learnt from random weights."""

pytestmark = pytest.mark.parametrize(("base", "added"), [(base, added) for base in models.names() for added in NEEDS])


def _model(base: str) -> VideoTextModel:
    """Small and in evaluation mode, with weights large enough that nothing comes out nearly equal."""
    module = models.load(base)
    options = build_settings(module.Options, {"hidden": 32}, where=base)
    torch.manual_seed(0)
    model: VideoTextModel = module.build(options, frame_width=WIDTH, word_width=WIDTH)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model.eval()


def _objective(added: str, model: VideoTextModel, seed: int = 0) -> Objective:
    module = objectives.load(added)
    torch.manual_seed(seed)
    objective: Objective = module.build(build_settings(module.Options, LOUD[added], where=added), model)
    return objective


def _batch(frames: tuple[int, ...] = (9, 30, 1, 17, 5, 12), queries: int = 30) -> Batch:
    """Queries of one word, which differ the most; the last video has none, unless it is the only one."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(frames)) < torch.tensor(frames)[:, None]
    return Batch(
        torch.randn(*mask.shape, WIDTH, generator=generator) * mask[..., None],
        mask,
        torch.randn(len(frames), CLIPS, WIDTH, generator=generator),
        torch.randn(queries, 1, WIDTH, generator=generator),
        torch.ones(queries, 1, dtype=torch.bool),
        torch.arange(queries) % max(1, len(frames) - 1),
    )


def _step(model: VideoTextModel, batch: Batch, epoch: int = 0, seed: int = 2) -> Step:
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    scores = model.training_scores(text, video, batch.owner)
    return Step(batch, text, video, scores, epoch, torch.Generator().manual_seed(seed))


def _loss(objective: Objective, model: VideoTextModel, batch: Batch, epoch: int = 0, seed: int = 2) -> Tensor:
    loss: Tensor = objective(model, _step(model, batch, epoch, seed))
    return loss


def test_a_base_that_gives_what_it_needs_takes_it(base: str, added: str) -> None:
    model = _model(base)
    assert model.gives & NEEDS[added], "where this fails, the pair is refused, and belongs in a test of that"
    loss = _loss(_objective(added, model), model, _batch())
    assert loss.shape == () and loss.isfinite() and loss > 0


def test_a_gradient_reaches_its_parameters_and_the_model(base: str, added: str) -> None:
    model = _model(base)
    objective = _objective(added, model)
    _loss(objective, model, _batch()).backward()  # type: ignore[no-untyped-call]
    for name, parameter in objective.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-7, name
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert any(gradient.abs().max() > 1e-7 for gradient in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("epoch", [0, 1000])
@pytest.mark.parametrize(("frames", "queries"), [((1,), 1), ((5,), 3), ((3, 4), 1)])
def test_one_video_and_one_query(base: str, added: str, frames: tuple[int, ...], queries: int, epoch: int) -> None:
    model = _model(base)
    loss = _loss(_objective(added, model), model, _batch(frames, queries), epoch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_its_random_numbers_are_the_steps(base: str, added: str) -> None:
    model, batch = _model(base), _batch()
    objective = _objective(added, model)
    losses: list[float] = []
    for seed in (2, 2, 3):
        torch.manual_seed(len(losses))  # of no consequence
        losses.append(_loss(objective, model, batch, seed=seed).item())
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_the_models_codes_are_left_as_they_were(base: str, added: str) -> None:
    model, batch = _model(base), _batch()
    before, step = _step(model, batch), _step(model, batch)
    _objective(added, model)(model, step)
    for name in ("moments", "frames", "global_"):
        one, other = getattr(before.video, name), getattr(step.video, name)
        assert (one is None and other is None) or torch.equal(one, other)
    assert torch.equal(step.batch.frames, _batch().frames) and torch.equal(step.batch.clips, _batch().clips)


def test_its_parameters_are_saved_and_loaded(base: str, added: str, tmp_path: Path) -> None:
    model = _model(base)
    one, other = _objective(added, model), _objective(added, model, seed=1)
    if not list(one.parameters()):
        return
    assert _loss(one, model, _batch()) != _loss(other, model, _batch())
    save_file(one.state_dict(), tmp_path / "objective.safetensors")
    other.load_state_dict(load_file(tmp_path / "objective.safetensors"))
    assert _loss(one, model, _batch()) == _loss(other, model, _batch())
    decayed, exempt = ({id(p) for p in group["params"]} for group in decay_groups(one, 0.01))
    assert {id(p) in decayed for name, p in one.named_parameters() if name.endswith("weight")} == {True}
    assert {id(p) in exempt for name, p in one.named_parameters() if name.endswith("bias")} == {True}


def test_what_is_padded_may_hold_anything(base: str, added: str) -> None:
    model, batch = _model(base), _batch()
    dirty = replace(batch, frames=batch.frames + 5.0 * ~batch.frame_mask[..., None])
    objective = _objective(added, model)
    torch.testing.assert_close(_loss(objective, model, dirty), _loss(objective, model, batch))
