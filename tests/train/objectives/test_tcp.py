"""TCP against section 3.5 of Ren et al., once more in NumPy: frame by frame."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prvr.datasets.batch import Batch
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.manifests.settings import build as build_settings
from prvr.train.interface import Step, VideoCode, VideoTextModel
from prvr.train.models import dual_branch
from prvr.train.objectives import tcp
from prvr.train.objectives.tcp import Options, Tcp, group_labels, shuffled_order

type Floats = NDArray[np.float64]

INPUTS, CLIPS = 3, 6


@pytest.fixture(scope="module")
def model() -> VideoTextModel:
    """In evaluation mode and double precision, with weights large enough that an order matters."""
    options = dual_branch.Options(hidden=8, heads=2, feed_forward=8, clips=CLIPS)
    model = dual_branch.build(options, frame_width=INPUTS, word_width=2).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    return model


def _tcp(model: VideoTextModel, seed: int = 0, **settings: Any) -> Tcp:
    module = tcp.build(build_settings(Options, settings, where="tcp"), model).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def _step(model: VideoTextModel, lengths: list[int], seed: int = 0, padding: int = 0) -> Step:
    """Videos of these lengths, the first of which has the only query."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
    rows = [torch.randn(n, INPUTS, generator=generator, dtype=torch.float64) for n in lengths]
    frames = torch.zeros(*mask.shape, INPUTS, dtype=torch.float64)
    frames[mask] = torch.cat(rows)
    clips = torch.randn(len(lengths), CLIPS, INPUTS, generator=generator, dtype=torch.float64)
    ones = torch.ones(1, 1, dtype=torch.bool)
    batch = Batch(frames, mask, clips, torch.ones(1, 1, 2, dtype=torch.float64), ones, torch.tensor([0]))
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(frames, mask, clips)
    return Step(batch, text, video, {}, 0, torch.Generator().manual_seed(seed))


def _expected(
    module: Tcp, model: VideoTextModel, step: Step, groups: int, ratio: float, rng: torch.Generator
) -> dict[str, float]:
    """Equations 6 and 7. The model itself is not under test: it encodes what NumPy shuffled."""
    inputs = {"frames": step.batch.frames.numpy().copy(), "moments": step.batch.clips.numpy().copy()}
    lengths = {"frames": step.batch.frame_mask.sum(1).tolist(), "moments": [CLIPS] * len(step.batch.clips)}
    truths: dict[str, list[tuple[list[int], list[int]]]] = {}
    for name in module.classifiers:
        values = inputs[name]
        draws = torch.rand(values.shape[:2], generator=rng).numpy()
        for video, length in enumerate(lengths[name]):
            groups_of = [math.floor(t * groups / length) for t in range(length)]
            chosen = np.argsort(draws[video, :length])[: round(ratio * length)].tolist()
            comes_from = dict(zip(sorted(chosen), chosen, strict=True))
            order = [comes_from.get(t, t) for t in range(length)]
            values[video, :length] = values[video, order]
            truths.setdefault(name, []).append((groups_of, [groups_of[t] for t in order]))
    frames, clips = (torch.from_numpy(inputs[name]) for name in ("frames", "moments"))
    again = model.encode_video(frames, step.batch.frame_mask, clips)
    losses = {}
    for name in module.classifiers:
        matrix, bias = (p.detach().numpy() for p in module.classifiers[name].parameters())
        found = []
        for video, (original, shuffled) in enumerate(truths[name]):
            loss = 0.0
            for codes, labels in ((step.video, original), (again, shuffled)):
                rows: Floats = getattr(codes, name)[video].detach().numpy()
                for row, label in zip(rows, labels, strict=False):  # the codes of padding come after the labels
                    scores = np.exp(matrix @ row + bias)
                    loss -= math.log(scores[label] / scores.sum()) / len(labels)
            found.append(loss)
        losses[f"tcp_{name}"] = sum(found) / len(found)
    return losses


@pytest.mark.parametrize("branches", [[], ["frames"], ["moments"], ["moments", "frames"]])
def test_random_cases(branches: list[str], model: VideoTextModel) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 14, rng.integers(1, 5)).tolist()  # most are shorter than the 8 groups allow for
        groups, ratio = int(rng.integers(2, 10)), float(rng.choice([0, 0.25, 0.5, 0.3, 1]))
        step = _step(model, lengths, seed)
        module = _tcp(model, seed, weight=0.5, groups=groups, shuffle=ratio, branches=branches)
        found = {name: term.item() for name, term in module.terms(model, step).items()}
        expected = _expected(module, model, step, groups, ratio, torch.Generator().manual_seed(seed))
        assert set(found) == {f"tcp_{name}" for name in branches or ["frames", "moments"]}
        for name, value in expected.items():
            assert found[name] == pytest.approx(0.5 * value, rel=0, abs=1e-6)


def test_groups_are_of_equal_size_where_they_can_be() -> None:
    mask = torch.arange(16) < torch.tensor([[16], [5], [1], [0]])
    labels = group_labels(mask, 4)
    assert labels[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert labels[1, :5].tolist() == [0, 0, 1, 2, 3] and labels[2, 0] == 0
    assert labels.min() >= 0 and labels.max() < 4
    assert group_labels(mask, 8)[1, :5].tolist() == [0, 1, 3, 4, 6]  # fewer frames than groups


@pytest.mark.parametrize(("ratio", "most"), [(0.0, 0), (0.25, 4), (1.0, 16)])
def test_so_many_are_shuffled_and_every_choice_occurs(ratio: float, most: int) -> None:
    mask = torch.arange(20) < torch.tensor([[16], [16]])
    rng = torch.Generator().manual_seed(0)
    orders = torch.stack([shuffled_order(mask, ratio, rng) for _ in range(300)])
    assert torch.equal(orders.sort(-1).values, torch.arange(20).expand_as(orders)), "nothing is lost or doubled"
    moved = (orders != torch.arange(20)).sum(-1)
    assert moved.max() == most and not (orders != torch.arange(20))[..., 16:].any()
    if most:
        assert not torch.equal(orders[:, 0], orders[:, 1]), "each video has an order of its own"
        came_from = torch.zeros(16, 16).index_put_(
            (torch.arange(16).repeat(600), orders[..., :16].flatten()), torch.ones(()), accumulate=True
        )
        assert (came_from > 0).all(), "any frame may come to any place"


def test_an_order_is_uniform() -> None:
    rng = torch.Generator().manual_seed(1)
    orders = shuffled_order(torch.ones(24000, 4, dtype=torch.bool), 0.75, rng)
    found, counts = np.unique(orders.numpy(), axis=0, return_counts=True)
    # Three of four are chosen and permuted: 4 × 6 cases, where the identity is in each choice, and a swap in two.
    expected = {0: 4000, 2: 2000, 3: 1000}
    for order, count in zip(found.tolist(), counts.tolist(), strict=True):
        moved = sum(place != source for place, source in enumerate(order))
        assert abs(count - expected[moved]) < 6 * math.sqrt(expected[moved])
    assert len(found) == 1 + 6 + 8


def test_padding_changes_nothing_but_the_draws(model: VideoTextModel) -> None:
    module = _tcp(model, shuffle=0.0)
    one, other = (module(model, _step(model, [9, 4, 1], padding=padding)) for padding in (0, 5))
    assert one.item() == pytest.approx(other.item(), abs=1e-9)


def test_codes_that_the_model_pads_further_are_cut(model: VideoTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _tcp(model)
    plain = module(model, _step(model, [5, 3])).item()
    encode = model.encode_video

    def further(*inputs: Tensor) -> VideoCode:
        video = encode(*inputs)
        assert video.frames is not None
        return replace(video, frames=nn.functional.pad(video.frames, (0, 0, 0, 7), value=9.0))

    monkeypatch.setattr(model, "encode_video", further)
    assert module(model, _step(model, [5, 3])).item() == pytest.approx(plain, abs=1e-12)


def test_a_model_with_one_branch_has_one_term(model: VideoTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model), "gives", frozenset({"moments"}))
    module = _tcp(model)
    assert set(module.terms(model, _step(model, [4]))) == {"tcp_moments"} and len(list(module.parameters())) == 2
    with pytest.raises(ConfigurationError, match="frames were asked for, and its video codes have no frames"):
        _tcp(model, branches=["frames"])
    monkeypatch.setattr(type(model), "gives", frozenset({"global_"}))
    with pytest.raises(ConfigurationError, match="no frames or moments"):
        _tcp(model)


def test_every_switch_changes_what_it_says(model: VideoTextModel) -> None:
    def term(**settings: Any) -> float:
        loss: Tensor = _tcp(model, **settings)(model, _step(model, [12, 9]))
        return loss.item()

    plain = term()
    assert term(weight=2.0) == pytest.approx(2 * plain)
    assert term(groups=4) != plain
    assert len({term(shuffle=ratio) for ratio in (0.0, 0.25, 0.5, 1.0)}) == 4
    frames, moments = (_tcp(model, branches=[name]).classifiers for name in ("frames", "moments"))
    assert list(frames) == ["frames"] and list(moments) == ["moments"]


def test_a_gradient_reaches_the_classifiers_and_what_is_encoded(model: VideoTextModel) -> None:
    module = _tcp(model)
    step = _step(model, [6, 3])
    model.zero_grad()
    module(model, step).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 1e-6 for p in module.parameters())
    reached = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"frames", "moments"}


def test_it_can_be_learnt(model: VideoTextModel) -> None:
    """Half of what a constant loses at best: the positions alone tell the groups of what was not shuffled."""
    module, step = _tcp(model), _step(model, [16, 16])
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        module(model, step).backward()
        optimizer.step()
        losses.append(module(model, step).item())
        step = _step(model, [16, 16])
    assert np.mean(losses[-10:]) < 2 * math.log(8)


@pytest.mark.parametrize(
    "settings", [{"weight": -1.0}, {"groups": 1}, {"shuffle": 1.5}, {"initializer_range": float("nan")}]
)
def test_options_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} is"):
        build_settings(Options, settings, where="tcp")


def test_a_branch_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(UnknownName, match="did you mean 'frames'"):
        Options(branches=("frame",))
