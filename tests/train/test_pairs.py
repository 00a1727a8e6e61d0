"""What every legal pair of a model and an objective owes: built, stepped and scored as ``prvr-train`` does, on the CPU.

The pairs are those that the code allows; a new model or objective is held to all of this without a line here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor, nn
from torch.nn import functional

from prvr.datasets.batch import Batch
from prvr.manifests.errors import UnknownName
from prvr.train import cli, models, objectives
from prvr.train.checkpoint import Position, load_model, load_state, save_model, save_state
from prvr.train.config import RunConfig
from prvr.train.interface import Objective, Scores, Step, VideoTextModel
from prvr.train.layers import SelfAttention
from prvr.train.metrics import ranks, recalls
from prvr.train.optim import OPTIMISERS, decay_groups
from prvr.train.pairs import Pair, matrix, pairs, refusal
from prvr.train.retriever import retriever
from prvr.train.run import make_model, make_objectives
from prvr.train.step import TrainingStep

FRAME_WIDTH, WORD_WIDTH, CLIPS, HIDDEN = 32, 30, 8, 48
LOUD: Mapping[str, Mapping[str, Any]] = {
    "ice": {"threshold": -1.0, "contrast": {"margin": 2.0}},
    "irm": {"contrast": {"margin": 2.0}},
    "ranking": {"margin": 2.0, "triplet": 1.0},
}
"""Settings under which something is to be learnt from random weights: no hinge is closed, no pair below a threshold."""

ALL = pairs()
LEGAL = [pair for pair in ALL if not pair.refusal]
REFUSED = [pair for pair in ALL if pair.refusal]
of_legal_pairs = pytest.mark.parametrize("pair", LEGAL, ids=lambda pair: f"{pair.model}+{pair.objective}")


@dataclass(frozen=True)
class Made:
    """A pair as a run has it: the base, what is ranked with, all objectives by name, and the training step."""

    pair: Pair
    model: VideoTextModel
    retriever: VideoTextModel
    objectives: dict[str, Objective]
    train: TrainingStep

    @property
    def added(self) -> Objective:
        return self.objectives[self.pair.objective]

    def step(self, batch: Batch, epoch: int = 0, seed: int = 2) -> Step:
        text = self.retriever.encode_text(batch.words, batch.word_mask)
        video = self.retriever.encode_video(batch.frames, batch.frame_mask, batch.clips)
        scores = self.retriever.training_scores(text, video, batch.owner)
        return Step(batch, text, video, scores, epoch, torch.Generator().manual_seed(seed))

    def loss(self, batch: Batch, epoch: int = 0, seed: int = 2) -> Tensor:
        terms: dict[str, Tensor] = self.train(batch, epoch, torch.Generator().manual_seed(seed))
        assert all(term.shape == () for term in terms.values())
        return torch.stack(list(terms.values())).sum()

    @torch.no_grad()
    def scores(self, batch: Batch) -> Scores:
        text = self.retriever.encode_text(batch.words, batch.word_mask)
        return self.retriever.score(text, self.retriever.encode_video(batch.frames, batch.frame_mask, batch.clips))


def _made(pair: Pair, *, seed: int = 0, loud: bool = True, spread: float = 0.2, **options: Any) -> Made:
    """Small and in evaluation mode, with weights ``spread`` far enough that nothing comes out nearly equal."""
    present = {each.objective for each in ALL if each.model == pair.model and (each.own or each == pair)}
    modules = {pair.model: {"hidden": HIDDEN, "clips": CLIPS, **options}}
    if loud:
        modules |= {name: dict(settings) for name, settings in LOUD.items() if name in present}
    config = RunConfig(model=f"{pair.model}+{pair.objective}", seed=seed, modules=modules)
    model = make_model(config, frame_width=FRAME_WIDTH, word_width=WORD_WIDTH)
    made = make_objectives(config, model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in nn.ModuleList([model, *made.values()]).parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=spread)
    ranked = retriever(model, made)
    train = TrainingStep(retriever=ranked, base=model, objectives=made)
    train.eval()
    return Made(pair, model, ranked, made, train)


def _batch(
    frames: tuple[int, ...] = (9, 14, 1, 7, 5, 12), words: tuple[int, ...] = (5, 1, 4, 3, 2) * 4, idle: int = 1
) -> Batch:
    """Videos and queries of these lengths; the last ``idle`` videos have no query, unless there is no other."""
    generator = torch.Generator().manual_seed(1)

    def padded(lengths: tuple[int, ...], width: int) -> tuple[Tensor, Tensor]:
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return torch.randn(*mask.shape, width, generator=generator) * mask[..., None], mask

    clips = torch.randn(len(frames), CLIPS, FRAME_WIDTH, generator=generator)
    owner = torch.arange(len(words)) % max(1, len(frames) - idle)
    frame_values, frame_mask = padded(frames, FRAME_WIDTH)
    return Batch(frame_values, frame_mask, clips, *padded(words, WORD_WIDTH), owner)


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _assert_same(one: Scores, other: Scores) -> None:
    assert one.branches.keys() == other.branches.keys()
    for name, score in one.branches.items():
        torch.testing.assert_close(score, other.branches[name], rtol=0, atol=2e-6)


def test_there_is_a_pair_for_every_model_and_objective() -> None:
    assert [(pair.model, pair.objective) for pair in ALL] == [
        (model, objective) for model in models.names() for objective in objectives.names()
    ]
    assert len(LEGAL) >= 25
    for name in models.names():
        assert any(pair.own and not pair.refusal for pair in ALL if pair.model == name), f"nothing trains {name}"


@pytest.mark.parametrize("objective", ["ice", "irm", "tcp"])
def test_a_model_without_what_it_needs_is_refused_with_the_reason(objective: str) -> None:
    module = models.load("dual-branch")
    model = module.build(module.Options(hidden=HIDDEN), frame_width=FRAME_WIDTH, word_width=WORD_WIDTH)
    assert refusal(model, objective) == ""
    model.gives = frozenset({"global_"})
    assert refusal(model, objective).startswith(f"{objective} cannot be added to this model (DualBranch): ")
    assert refusal(model, objective).endswith("(they have: global_)")
    with pytest.raises(UnknownName, match="did you mean"):
        refusal(model, f"{objective}s")


@pytest.mark.parametrize("pair", REFUSED, ids=lambda pair: f"{pair.model}+{pair.objective}")
def test_training_refuses_a_pair_for_the_reason_in_the_list(
    pair: Pair, world: Any, invoke: Callable[..., Result], tmp_path: Path
) -> None:
    named = f"{pair.model}+{pair.objective}"
    result = invoke(cli.main, "--shards", world.data, "--model", named, "--out", tmp_path / "run")
    assert result.exit_code == 2 and pair.refusal in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_list_has_a_row_for_every_model_and_a_line_for_every_reason(invoke: Callable[..., Result]) -> None:
    result = invoke(cli.main, "--list")
    assert result.exit_code == 0 and matrix(ALL) in result.stdout
    made_up = (Pair("one", "ice", True, ""), Pair("one", "tcp", False, ""), Pair("other", "ice", False, "it cannot"))
    assert matrix((*made_up, Pair("other", "tcp", False, ""))).splitlines() == [
        "pairs:",
        "         ice  tcp",
        "  one     *    +",
        "  other   -    +",
        "  * in its paper's loss, + can be added, - refused",
        "  other+ice: it cannot",
    ]


@of_legal_pairs
def test_a_gradient_reaches_every_parameter(pair: Pair) -> None:
    """But the bias of attention's keys, which adds the same to all logits of a row and so cancels in the softmax; and
    what the model has for a branch alone that the objective takes the place of, such as its pooling of frames."""
    made = _made(pair)
    loss = made.loss(_batch())
    assert loss.shape == () and loss.isfinite() and loss > 0
    _backward(loss)
    exempt = {id(module.key.bias) for module in made.train.modules() if isinstance(module, SelfAttention)}
    exempt |= {id(parameter) for parameter in _of_replaced_branches(made)}
    unreached = [
        name
        for name, parameter in made.train.named_parameters()
        if id(parameter) not in exempt and (parameter.grad is None or not parameter.grad.abs().max() > 1e-7)
    ]
    assert not unreached


def _of_replaced_branches(made: Made) -> list[nn.Parameter]:
    """The model's parameters that nothing depends on but those of its own scores that an objective replaces."""
    step = made.step(_batch())
    own = made.model.training_scores(step.text, step.video, step.owner)
    replaced = made.added.replace_branch(made.model, step.text, step.video).keys()
    assert replaced <= own.keys() and bool(replaced) == made.added.ranks
    if not replaced:
        return []
    used = [own[name].cosine for name in own.keys() - replaced]
    used += [code for code in (step.text.words, step.video.moments, step.video.frames) if code is not None]
    parameters = list(made.model.parameters())
    kept, gone = (
        torch.autograd.grad([code.sum() for code in codes], parameters, retain_graph=True, allow_unused=True)
        for codes in (used, [own[name].cosine for name in replaced])
    )
    return [p for p, one, other in zip(parameters, kept, gone, strict=True) if one is None and other is not None]


@of_legal_pairs
def test_the_optimizer_has_every_parameter_once(pair: Pair) -> None:
    """Biases do not decay, matrices do: those of objectives as well."""
    made = _made(pair)
    decayed, exempt = ([id(parameter) for parameter in group["params"]] for group in decay_groups(made.train, 0.01))
    assert sorted(decayed + exempt) == sorted(id(parameter) for parameter in made.train.parameters())
    linear = [module for module in made.added.modules() if isinstance(module, nn.Linear)]
    assert {id(module.weight) for module in linear} <= set(decayed)
    assert {id(module.bias) for module in linear if module.bias is not None} <= set(exempt)


@of_legal_pairs
def test_the_objective_alone_teaches_the_model(pair: Pair) -> None:
    made = _made(pair)
    loss = made.added(made.model, made.step(_batch()))
    assert loss.shape == () and loss.isfinite() and loss > 0
    _backward(loss)
    gradients = [parameter.grad for parameter in made.model.parameters() if parameter.grad is not None]
    assert any(gradient.abs().max() > 1e-7 for gradient in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients)


@of_legal_pairs
def test_one_video_and_one_query(pair: Pair) -> None:
    made = _made(pair)
    for frames, words in (((1,), (1,)), ((5,), (2, 1, 3)), ((3, 4), (2,))):
        batch = _batch(frames, words)
        scores = made.scores(batch).fused
        assert scores.shape == (len(words), len(frames)) and scores.isfinite().all()
        for epoch in (0, 1000):
            loss = made.loss(batch, epoch)
            made.train.zero_grad()
            _backward(loss)
            assert loss.isfinite()
            assert all(p.grad.isfinite().all() for p in made.train.parameters() if p.grad is not None)


@of_legal_pairs
def test_its_random_numbers_are_the_steps(pair: Pair) -> None:
    """The same loss from the same generator, whatever the global one is at; another where it has drawn from another."""
    made, batch = _made(pair), _batch()
    losses: list[float] = []
    for seed in (2, 2, 3):
        torch.manual_seed(len(losses))
        step = made.step(batch, seed=seed)
        before = step.rng.get_state()
        losses.append(made.added(made.model, step).item())
        drawn = not torch.equal(before, step.rng.get_state())
    assert losses[0] == losses[1]
    assert (losses[0] != losses[2]) == drawn


@of_legal_pairs
def test_codes_and_batch_are_left_as_they_were(pair: Pair) -> None:
    made, batch = _made(pair), _batch()
    before, step = made.step(batch), made.step(batch)
    made.added(made.model, step)
    for one, other in ((before.text, step.text), (before.video, step.video), (_batch(), step.batch)):
        for field in fields(one):
            left, right = getattr(one, field.name), getattr(other, field.name)
            assert torch.equal(left, right) if isinstance(left, Tensor) else left == right, field.name
    for name, branch in before.scores.items():
        assert torch.equal(branch.cosine, step.scores[name].cosine) and torch.equal(branch.dot, step.scores[name].dot)


@of_legal_pairs
def test_what_is_padded_may_hold_anything(pair: Pair) -> None:
    made, batch = _made(pair), _batch()
    generator = torch.Generator().manual_seed(5)  # a constant would not do: projections begin with a LayerNorm
    frames, words = (torch.randn(clean.shape, generator=generator) for clean in (batch.frames, batch.words))
    frames, words = frames * ~batch.frame_mask[..., None], words * ~batch.word_mask[..., None]
    dirty = replace(batch, frames=batch.frames + 5 * frames, words=batch.words + 5 * words)
    torch.testing.assert_close(made.loss(dirty), made.loss(batch))
    _assert_same(made.scores(dirty), made.scores(batch))


@of_legal_pairs
def test_more_padding_changes_no_score(pair: Pair) -> None:
    """But where a released model says that it does, and why: then it must."""
    made, batch = _made(pair), _batch()
    words, word_mask = functional.pad(batch.words, (0, 0, 0, 5)), functional.pad(batch.word_mask, (0, 5))
    _assert_same(made.scores(replace(batch, words=words, word_mask=word_mask)), made.scores(batch))
    frames, frame_mask = functional.pad(batch.frames, (0, 0, 0, 5)), functional.pad(batch.frame_mask, (0, 5))
    longer = made.scores(replace(batch, frames=frames, frame_mask=frame_mask))
    if reason := made.retriever.padding_matters:
        assert (longer.fused - made.scores(batch).fused).abs().max() > 1e-4, reason
    else:
        _assert_same(longer, made.scores(batch))


@of_legal_pairs
def test_order_of_videos_and_queries_is_order_of_scores(pair: Pair) -> None:
    made, batch = _made(pair), _batch()
    videos, queries = (torch.randperm(size, generator=torch.Generator().manual_seed(size)) for size in (6, 20))
    permuted = Batch(
        batch.frames[videos],
        batch.frame_mask[videos],
        batch.clips[videos],
        batch.words[queries],
        batch.word_mask[queries],
        videos.argsort()[batch.owner[queries]],
    )
    scores = made.scores(batch)
    moved = {name: score[queries][:, videos] for name, score in scores.branches.items()}
    _assert_same(made.scores(permuted), replace(scores, branches=moved))


@of_legal_pairs
def test_what_is_saved_is_what_is_loaded(pair: Pair, tmp_path: Path) -> None:
    """The chosen model ranks alike; the state goes on alike, with the objectives' parameters and the optimizer's."""
    made, other, batch = _made(pair), _made(pair, seed=3), _batch()
    assert not torch.allclose(made.scores(batch).fused, other.scores(batch).fused)
    save_model(tmp_path, made.retriever, {})
    load_model(tmp_path, other.retriever)
    assert torch.equal(made.scores(batch).fused, other.scores(batch).fused)

    again = _made(pair, seed=4)
    one, two = _optimizer(made, steps=10), _optimizer(again, steps=10)
    _trained(made, batch, one)
    save_state(tmp_path, _modules(made), one, Position(step=1))
    assert load_state(tmp_path, _modules(again), two).step == 1
    for each, optimizer in ((made, one), (again, two)):
        _trained(each, batch, optimizer)
    assert torch.equal(made.loss(batch), again.loss(batch))
    trained, continued = made.train.state_dict(), again.train.state_dict()
    assert all(torch.equal(value, continued[name]) for name, value in trained.items())


@of_legal_pairs
def test_it_overfits_sixteen_videos(pair: Pair) -> None:
    """Of random features, two queries a video; trained until each query finds its video. Without dropout, which is there
    to prevent this, and with larger initial weights than a width of 384 wants."""
    made = _made(pair, loud=False, spread=0.0, initializer_range=0.2, input_dropout=0.0, dropout=0.0)
    batch = _batch(frames=(3, 2, 4, 1) * 4, words=(3, 2) * 16, idle=0)
    assert batch.owner.bincount().tolist() == [2] * 16
    steps = 80
    optimizer = _optimizer(made, steps)
    found = []
    for number in range(steps):
        _trained(made, batch, optimizer, number)
        if number % 5 == 4:
            found.append(recalls(ranks(made.scores(batch).fused, batch.owner))["R@1"])
            if found[-1] == 100:
                break
    assert found[-1] == 100, found


def _optimizer(made: Made, steps: int) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = OPTIMISERS["adamw"](
        decay_groups(made.train, 0.01), lr=1e-2, warmup=0.1, total_steps=steps
    )
    return optimizer


def _modules(made: Made) -> dict[str, nn.Module]:
    return {"model": made.model, "objectives": nn.ModuleDict(made.objectives)}


def _trained(made: Made, batch: Batch, optimizer: torch.optim.Optimizer, number: int = 0) -> None:
    made.train.train()
    torch.manual_seed(number)
    _backward(made.loss(batch, seed=number))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    made.train.eval()
