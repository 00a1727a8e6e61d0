"""The dual-branch model against its equations, and trained with the objectives that it was published with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prvr.datasets.stream import ShardReader
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.config import resolve
from prvr.train.interface import TextCode, VideoCode
from prvr.train.loop import Trainer
from prvr.train.models import dual_branch
from prvr.train.models.dual_branch import DualBranch, Options
from prvr.train.optim import BertAdam, decay_groups
from prvr.train.run import make_model, make_objectives

FULL = "dual-branch+ice+irm+tcp"

# TensorBoard's own protobuf code.
pytestmark = pytest.mark.filterwarnings("ignore:.*PyType_Spec.*:DeprecationWarning")


def _model(**settings: Any) -> DualBranch:
    """In evaluation mode, with weights large enough that attention prefers something."""
    model = dual_branch.build(Options(**{"hidden": 16, **settings}), frame_width=6, word_width=5).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _codes(model: DualBranch) -> tuple[TextCode, VideoCode]:
    """Five queries and three videos."""
    frame_mask = torch.arange(9) < torch.tensor([[9], [2], [5]])
    word_mask = torch.arange(4) < torch.tensor([[4], [1], [3], [2], [4]])
    with torch.no_grad():
        video = model.encode_video(_random(3, 9, 6), frame_mask, _random(3, 32, 6))
        return model.encode_text(_random(5, 4, 5), word_mask), video


def test_scores_are_equations_1_2_and_8() -> None:
    model = _model(alpha=0.6)
    text, video = _codes(model)
    assert video.frames is not None and video.global_ is not None and video.moments is not None
    assert video.frame_mask is not None
    scores = model.score(text, video)
    for v in range(3):
        real = video.frames[v][video.frame_mask[v]]
        weights = (real @ model.video_pooling.direction.weight[0]).softmax(0)
        whole = (weights[:, None] * real).sum(0)
        torch.testing.assert_close(video.global_[v], whole)
        for q in range(5):
            first = nn.functional.cosine_similarity(whole, text.sentence[q], dim=0)
            second = max(nn.functional.cosine_similarity(m, text.sentence[q], dim=0) for m in video.moments[v])
            torch.testing.assert_close(scores.branches["video"][q, v], first)
            torch.testing.assert_close(scores.branches["moment"][q, v], second)
            torch.testing.assert_close(scores.fused[q, v], 0.4 * first + 0.6 * second)


def test_dot_products_are_of_the_codes_as_they_are() -> None:
    model = _model()
    text, video = _codes(model)
    assert video.global_ is not None and video.moments is not None
    branches = model.training_scores(text, video, torch.tensor([0, 0, 1, 2, 2]))
    products = torch.einsum("qd,vcd->qvc", text.sentence, video.moments)
    torch.testing.assert_close(branches["video"].dot, text.sentence @ video.global_.T)
    torch.testing.assert_close(branches["moment"].dot, products.amax(-1))
    assert not any(branch.paired for branch in branches.values())


def test_it_has_as_many_parameters_as_table_2_says() -> None:
    config = resolve({"model": FULL}, {}, "unheard-of")
    model = make_model(config, frame_width=1024, word_width=1024)
    modules = nn.ModuleList([model, *make_objectives(config, model).values()])
    unused = 3 * 300 - (30 + 128 + 32)  # positions that MS-SL's configuration has tables for
    assert sum(p.numel() for p in modules.parameters()) + 384 * unused == pytest.approx(4.65e6, abs=5e3)


def test_it_starts_as_ms_sl_does() -> None:
    model = dual_branch.build(Options(), frame_width=64, word_width=48)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module.weight.numel() > 10_000:
            assert abs(module.weight.std().item() - 0.02) < 5e-4
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert not module.bias.any()


def test_biases_and_norms_alone_are_not_decayed() -> None:
    model = _model()
    exempt = {id(parameter) for parameter in decay_groups(model, 0.01)[1]["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in exempt}
    assert names == {name for name, _ in model.named_parameters() if "bias" in name or "norm" in name}


def test_inputs_of_another_shape_are_refused() -> None:
    model = _model(clips=8, max_frames=4)
    with pytest.raises(ValueError, match="32 clips a video, but the model takes 8"):
        model.encode_video(_random(1, 3, 6), torch.ones(1, 3, dtype=torch.bool), _random(1, 32, 6))
    with pytest.raises(ValueError, match="a sequence of 5, but the position table has 4 rows"):
        model.encode_video(_random(1, 5, 6), torch.ones(1, 5, dtype=torch.bool), _random(1, 8, 6))
    text, _ = _codes(_model())
    with pytest.raises(TypeError, match="not a VideoCode"):
        model.score(text, VideoCode(None, None, None, None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 30}, "hidden 30 does not divide into 4 heads"),
        ({"dropout": 1.0}, r"dropout is 1.0, but must be in \[0, 1\)"),
        ({"feed_forward": 0}, "feed_forward is 0, but must be at least 1"),
        ({"alpha": 1.1}, r"alpha is 1.1, but must be in \[0, 1\]"),
        ({"initializer_range": -0.1}, "initializer_range is -0.1, but must not be negative"),
    ],
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options(**settings)


def test_a_variant_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(UnknownName, match="'released': known: paper"):
        Options(variant="released")


@pytest.mark.parametrize("dataset", ["tvr", "activitynet", "charades"])
def test_the_presets_are_the_published_settings_and_those_are_the_defaults(dataset: str) -> None:
    """One set of hyper-parameters on all data sets; a preset writes them out with their sources."""
    config = resolve({"preset": f"dual-branch.{dataset}"}, {}, dataset)
    assert config.model == FULL and (config.epochs, config.batch_size, config.lr) == (100, 128, 2.5e-4)
    plain = resolve({"model": FULL}, {}, "unheard-of")
    made, default = (
        make_objectives(found, make_model(found, frame_width=8, word_width=8)) for found in (config, plain)
    )
    for name in made:
        ours, theirs = (
            {k: v for k, v in vars(o[name]).items() if not k.startswith("_") and k != "training"}
            for o in (made, default)
        )
        assert ours == theirs and ours
        shapes, default_shapes = ({k: v.shape for k, v in o[name].state_dict().items()} for o in (made, default))
        assert shapes == default_shapes


def test_with_all_three_objectives_it_overfits(make_world: Callable[..., Any], tmp_path: Path) -> None:
    """Sixteen videos, chosen on themselves: every query finds its own."""
    world = make_world(tmp_path / "world", train=16)
    epochs, small = 50, {"hidden": 32, "dropout": 0, "input_dropout": 0}
    options = {"model": FULL, "epochs": epochs, "batch_size": 16, "lr": 2e-3, "seed": 1}
    config = resolve(options, {"dual-branch": small}, "made")
    config = replace(config, loop=replace(config.loop, patience=epochs))
    with ShardReader(world.data, "train") as reader:
        model = make_model(config, frame_width=8, word_width=6)
        objectives = make_objectives(config, model)
        groups = decay_groups(nn.ModuleList([model, *objectives.values()]), 0.01)
        before = [p.clone() for objective in objectives.values() for p in objective.parameters()]
        position = Trainer(
            run=tmp_path / "run", config=config, model=model, objectives=objectives,
            optimizer=BertAdam(groups, lr=config.lr, total_steps=epochs, warmup=0.05),
            train=reader, select=reader, device=torch.device("cpu"), about={},
        ).fit()  # fmt: skip
    assert position.best is not None and position.best["R@1"] == 100
    after = [p for objective in objectives.values() for p in objective.parameters()]
    assert len(after) == 6 and not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
