"""RAL against a second writing of its equations in NumPy, word by word and proxy by proxy; its switches; what it holds.

The released variant on GMMFormer v2 is held against its authors' tensors in ``tests/train/models/test_released.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prvr.datasets.batch import Batch
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build as build_settings
from prvr.train import models
from prvr.train.interface import Step, TextCode, VideoCode, VideoTextModel
from prvr.train.models import gmmformer_v2
from prvr.train.models._similarity import lengths
from prvr.train.objectives import _set_to_set, ral
from prvr.train.objectives._set_to_set import RalText
from prvr.train.objectives.ral import Options, Ral
from prvr.train.retriever import Retriever, retriever

type Floats = NDArray[np.float64]
WIDTH, PLACES = 6, 8
BASES = {"ms-sl": "frame", "gmmformer": "frame", "gmmformer-v2": "frame", "dual-branch": "video"}


def _model(base: str = "dual-branch", **options: Any) -> VideoTextModel:
    module = models.load(base)
    options = {"hidden": WIDTH, "heads": 2, "max_frames": PLACES, "clips": 4, "max_words": 7} | options
    torch.manual_seed(0)
    model: VideoTextModel = module.build(module.Options(**options), frame_width=5, word_width=3)
    return model


def _built(model: VideoTextModel | None = None, seed: int = 0, **options: Any) -> Ral:
    """In evaluation mode, with weights large enough that nothing comes out nearly equal."""
    made = ral.build(build_settings(Options, options, where="ral"), model or _model())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
    return made.double().eval()


@dataclass(frozen=True)
class Case:
    """Codes as an encoder would leave them, padded words' included, and the same cut into lists."""

    text: RalText
    video: VideoCode
    owner: Tensor

    @property
    def words(self) -> list[Floats]:
        return [code[mask].numpy() for code, mask in zip(self.text.own_words, self.text.mask, strict=True)]

    @property
    def frames(self) -> list[Floats]:
        assert self.video.frames is not None and self.video.frame_mask is not None
        return [code[mask].numpy() for code, mask in zip(self.video.frames, self.video.frame_mask, strict=True)]

    def step(self, seed: int = 0) -> Step:
        videos, queries = len(self.frames), len(self.owner)
        blank = torch.zeros(videos, 1, 1)
        ones = torch.ones(queries, 1, dtype=torch.bool)
        batch = Batch(blank, ones.new_ones(videos, 1), blank, torch.zeros(queries, 1, 1), ones, self.owner)
        return Step(batch, self.text, self.video, {}, 0, torch.Generator().manual_seed(seed))


EDGES = (((3,), (1,)), ((1, 4), (1, 1)), ((2, 8), (0, 3)), ((5, 1, 3), (2, 1, 4)), ((8, 8), (1, 5)))
"""Frames and queries of each video: one video, one query; one frame; one without queries; support sets of one and of five."""


def _case(index: int, most_words: int = 4) -> Case:
    frames, queries = EDGES[index]
    generator = torch.Generator().manual_seed(index)
    owner = torch.arange(len(frames)).repeat_interleave(torch.tensor(queries))
    counts = torch.randint(1, most_words + 1, (len(owner),), generator=generator)
    counts[0] = 1  # a query of one word
    mask = torch.arange(most_words) < counts[:, None]
    codes = torch.randn(*mask.shape, WIDTH, generator=generator, dtype=torch.float64)
    confidence, dot_confidence = torch.rand(2, *mask.shape, generator=generator, dtype=torch.float64) * mask
    text = RalText(codes, mask, codes.mean(1), codes, confidence, dot_confidence)
    frame_mask = torch.arange(max(frames)) < torch.tensor(frames)[:, None]
    frame_codes = torch.randn(*frame_mask.shape, WIDTH, generator=generator, dtype=torch.float64)
    return Case(text, VideoCode(None, frame_codes, None, frame_mask), owner)


# ---- MSRA, once more


def _soft(logits: Floats) -> Floats:
    weights: Floats = np.exp(logits - logits.max())
    return weights / weights.sum()


def _unit(vector: Floats) -> Floats:
    scaled: Floats = vector / np.sqrt((vector**2).sum())
    return scaled


class Weights:
    """Of one estimator, by name."""

    def __init__(self, module: nn.Module) -> None:
        self.values: Mapping[str, Floats] = {name: tensor.numpy() for name, tensor in module.state_dict().items()}

    def linear(self, name: str, x: Floats) -> Floats:
        made: Floats = self.values[f"{name}.weight"] @ x + self.values[f"{name}.bias"]
        return made

    def norm(self, x: Floats) -> Floats:
        scaled = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
        made: Floats = scaled * self.values["norm.weight"] + self.values["norm.bias"]
        return made

    def attended(self, name: str, rows: list[Floats]) -> Floats:
        first, second = self.values[f"{name}.0.weight"], self.values[f"{name}.2.weight"]
        weights = _soft(np.array([float((second @ np.tanh(first @ row))[0]) for row in rows]))
        made: Floats = np.sum([weight * row for weight, row in zip(weights, rows, strict=True)], axis=0)
        return made


def _paper_gaussian(weights: Weights, rows: list[Floats], aggregation: str) -> tuple[Floats, Floats]:
    """Equations 3, 6, 7."""
    parts = []
    if aggregation != "local":
        parts.append(weights.linear("whole", np.mean(rows, axis=0)))
    if aggregation != "global":
        parts.append(weights.attended("gate", rows))
    x = weights.norm(np.sum(parts, axis=0))
    return weights.linear("mean", x), weights.linear("deviation", x)


def _released_gaussian(
    weights: Weights, rows: list[Floats], seen: list[Floats], aggregation: str, unit: bool
) -> tuple[Floats, Floats]:
    means, deviations = [], []
    if aggregation != "local":
        whole = _unit(np.mean([_unit(row) for row in rows], axis=0)) if unit else np.mean(rows, axis=0)
        means.append(whole)
        deviations.append(weights.linear("global_deviation", whole))
    if aggregation != "global":
        means.append(1 / (1 + np.exp(-weights.linear("mean", weights.attended("mean_gate", seen)))))
        deviations.append(weights.linear("local_deviation", weights.attended("deviation_gate", seen)))
    return _unit(weights.norm(np.sum(means, axis=0))), np.sum(deviations, axis=0)


def _kl(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> float:
    """Of Gaussians with independent dimensions, given by mean and variance."""
    (a, s), (b, t) = one, other
    return float(sum(0.5 * (np.log(v / u) + (u + (x - y) ** 2) / v - 1) for x, u, y, v in zip(a, s, b, t, strict=True)))


def _msra(case: Case, module: Ral, options: Options, seed: int) -> dict[str, float]:
    """Both losses, without their weights."""
    assert module.msra is not None
    text_weights, video_weights = Weights(module.msra.text), Weights(module.msra.video)
    released, owner = options.variant == "released", case.owner.tolist()
    videos = sorted(set(owner))
    groups = [[q for q in range(len(owner)) if owner[q] == v] for v in videos]
    of_group = list(range(len(videos)))
    if options.support == "query":
        of_group = [videos.index(v) for v in owner]
        groups = [[q] for q in range(len(owner))]
    longest, zero = case.text.mask.shape[1], np.zeros(WIDTH)

    def text_gaussian(queries: list[int]) -> tuple[Floats, Floats]:
        rows = [row for q in queries for row in case.words[q]]
        if not released:
            return _paper_gaussian(text_weights, rows, options.aggregation)
        seen = rows
        if options.pads:
            seen = [row for q in queries for row in case.text.own_words[q].numpy()]
            places = longest * (options.support_queries if options.support == "video" else 1)
            seen = seen + [zero] * (places - len(seen))
        return _released_gaussian(text_weights, rows, seen, options.aggregation, unit=False)

    def video_gaussian(video: int) -> tuple[Floats, Floats]:
        rows = list(case.frames[video])
        if not released:
            return _paper_gaussian(video_weights, rows, options.aggregation)
        seen = rows + [zero] * (PLACES - len(rows) if options.pads else 0)
        return _released_gaussian(video_weights, rows, seen, options.aggregation, unit=True)

    sides = [[text_gaussian(queries) for queries in groups], [video_gaussian(video) for video in videos]]
    rng = torch.Generator().manual_seed(seed)
    proxies: list[list[list[Floats]]] = []
    for side in sides:  # equation 9
        count = options.proxies
        noise = (
            torch.randn(len(side), count, WIDTH, generator=rng).numpy() if count else np.zeros((len(side), 1, WIDTH))
        )
        spread = [np.exp(deviation) if count else 0.0 for _, deviation in side]
        proxies.append([[side[n][0] + spread[n] * e for e in noise[n]] for n in range(len(side))])

    def compare(one: Floats, other: Floats) -> float:
        return float(one @ other) if released else float(_unit(one) @ _unit(other)) / options.temperature

    def matching(these: list[list[Floats]], those: list[list[Floats]], own: Callable[[int, int], bool]) -> float:
        losses = []
        for n, several in enumerate(these):
            for proxy in several:
                values = [[compare(proxy, other) for other in others] for others in those]
                total = sum(np.exp(value) for row in values for value in row)
                positive = [value for m, row in enumerate(values) if own(n, m) for value in row]
                if released:
                    losses.append(-np.mean([np.log(np.exp(value) / total) for value in positive]))
                else:  # equation 10
                    losses.append(-np.log(sum(np.exp(value) for value in positive) / total))
        return float(np.mean(losses))

    text, video = proxies
    loss = matching(text, video, lambda n, m: of_group[n] == m)
    if released:
        loss = (loss + matching(video, text, lambda n, m: of_group[m] == n)) / 2

    standard = (np.zeros(WIDTH), np.ones(WIDTH))
    described = []
    for side, drawn in zip(sides, proxies, strict=True):
        means = [np.mean(several, axis=0) if released else mean for several, (mean, _) in zip(drawn, side, strict=True)]
        described.append([(mean, np.exp(2 * deviation)) for mean, (_, deviation) in zip(means, side, strict=True)])
    alignment = np.mean([_kl(described[0][n], described[1][m]) for n, m in enumerate(of_group)])  # equation 8
    for several in described:
        power = 0.5 if released and options.log_variance else 1.0
        alignment += np.mean([_kl((mean, variance**power), standard) for mean, variance in several])
    return {"ral_matching": loss, "ral_alignment": float(alignment)}


SETTINGS: list[dict[str, Any]] = [
    {"variant": "paper"},
    {"variant": "paper", "support": "query", "temperature": 0.5},
    {"variant": "paper", "aggregation": "local", "proxies": 2},
    {"variant": "paper", "aggregation": "global", "proxies": 0},
    {"support_queries": 3},  # of five queries, none is left out
    {"pads": False, "log_variance": False},
    {"support": "query", "proxies": 2},
    {"aggregation": "local", "proxies": 0},
    {"aggregation": "global", "log_variance": False},
]


@pytest.mark.parametrize("index", range(len(EDGES)))
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_msra_is_what_the_equations_say(settings: dict[str, Any], index: int) -> None:
    case = _case(index)
    module = _built(**settings, alignment=0.5, matching=2.0)
    found = module.terms(_model(), case.step(seed=7))
    expected = _msra(case, module, Options(**settings), 7)
    assert found["ral_matching"].item() == pytest.approx(2.0 * expected["ral_matching"], rel=1e-9, abs=1e-9)
    assert found["ral_alignment"].item() == pytest.approx(0.5 * expected["ral_alignment"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("variant", ral.VARIANTS)
def test_the_weights_are_the_variants_unless_given(variant: str) -> None:
    case, expected = _case(3), ral.WEIGHTS[variant]
    module = _built(variant=variant)
    found, wanted = module.terms(_model(), case.step()), _msra(case, module, Options(variant), 0)
    for name, weight in expected.items():
        assert found[f"ral_{name}"].item() == pytest.approx(weight * wanted[f"ral_{name}"], rel=1e-9)


# ---- CSA, once more


def _csa(case: Case, *, released: bool) -> tuple[Floats, Floats]:
    """Equations 11 and 12, and the released score of dot products, [Q, V] both."""
    score, dot = np.zeros((2, len(case.owner), len(case.frames)))
    for q, words in enumerate(case.words):
        for v, frames in enumerate(case.frames):
            pads = [0.0] if released and len(frames) < PLACES else []
            for w, word in enumerate(words):
                cosines = [float(_unit(word) @ _unit(frame)) for frame in frames]
                products = [float(word @ frame) for frame in frames]
                score[q, v] += case.text.confidence[q, w].item() * max(cosines + pads)
                dot[q, v] += case.text.dot_confidence[q, w].item() * max(products + pads)
    return score, dot


@pytest.mark.parametrize("index", range(len(EDGES)))
@pytest.mark.parametrize("variant", ral.VARIANTS)
def test_csa_is_what_the_equations_say(variant: str, index: int) -> None:
    case = _case(index)
    branch = _built(variant=variant).replace_branch(_model(), case.text, case.video)["video"]
    score, dot = _csa(case, released=variant == "released")
    assert not branch.paired
    np.testing.assert_allclose(branch.cosine.numpy(), score, rtol=0, atol=1e-9)
    np.testing.assert_allclose(branch.dot.numpy(), dot if variant == "released" else score, rtol=0, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"variant": "paper"}, {"confidence": "equal"}], ids=str)
def test_words_have_an_encoder_of_their_own_and_the_models_positions(settings: dict[str, Any]) -> None:
    model = _model().double().eval()
    module = _built(model, **settings)
    assert module.csa is not None
    features = torch.randn(3, 5, 3, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 1, 3])[:, None]
    text = module.encode_text(model, model.encode_text(features, mask), features, mask)
    assert isinstance(text, RalText)
    assert not any(a is b for a in module.parameters() for b in model.parameters()), "positions are shared, not owned"
    position = model.get_submodule("words.position")
    for q, count in enumerate(mask.sum(1).tolist()):
        alone = module.csa.attend(position(module.csa.project(features[q : q + 1, :count])))[0]
        torch.testing.assert_close(text.own_words[q, :count], alone, rtol=0, atol=1e-9)
        predict = module.csa.predict
        if predict is None:
            wanted = dot = torch.full((count,), 1 / count, dtype=torch.float64)
        elif settings:
            wanted = dot = predict(alone).squeeze(-1)  # equation 12
        else:
            wanted, dot = predict(alone / lengths(alone)[:, None]).softmax(0)[:, 0], predict(alone).softmax(0)[:, 0]
        torch.testing.assert_close(text.confidence[q, :count], wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(text.dot_confidence[q, :count], dot, rtol=0, atol=1e-9)
        assert not text.confidence[q, count:].any() and not text.dot_confidence[q, count:].any()


def _plain(words: Tensor, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """All products at once."""
    units = words / lengths(words)[:, None], frames / lengths(frames)[..., None]
    both = (torch.einsum("nd,vfd->nvf", *pair).masked_fill(~mask, -torch.inf) for pair in (units, (words, frames)))
    cosine, dot = (products.max(-1).values for products in both)
    return cosine, dot


@pytest.mark.parametrize("elements", [1, 60, 2**20], ids=["a video at a time", "some", "all at once"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 4), (3, 1, 9)], ids=str)
def test_nearest_frames_and_their_gradients_are_the_plain_ones(
    shape: tuple[int, int, int], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_set_to_set, "_ELEMENTS", {"cpu": elements})
    count, videos, longest = shape
    generator = torch.Generator().manual_seed(0)
    last = torch.randint(1, longest + 1, (videos, 1), generator=generator)
    mask = torch.arange(longest) < last
    gradients = []
    for function in (_set_to_set.nearest_frames, _plain):
        words, frames = (
            torch.randn(*size, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
            for size in ((count,), (videos, longest))
        )
        cosine, dot = function(words, frames, mask)
        weights = torch.randn(2, count, videos, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        (weights[0] * cosine + weights[1] * dot).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([cosine.detach(), dot.detach(), words.grad, frames.grad])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_what_is_kept_for_the_gradient_has_no_place_for_all_products() -> None:
    words = torch.randn(400, 32, requires_grad=True)
    frames = torch.randn(40, 128, 32, requires_grad=True)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _set_to_set.nearest_frames(words, frames, torch.ones(40, 128, dtype=torch.bool))
    products = 4 * 400 * 40 * 128
    assert 0 < sum(kept.values()) < products / 4, "[N, V, F] alone has this many bytes in the plain version, twice"


# ---- bases


@pytest.mark.parametrize(("base", "branch"), BASES.items())
@pytest.mark.parametrize("variant", ral.VARIANTS)
def test_it_takes_the_place_of_the_score_of_frames(variant: str, base: str, branch: str) -> None:
    model = _model(base)
    module = _built(model, variant=variant).float()
    both = retriever(model, {"ral": module}).eval()
    batch = _batch()
    with torch.no_grad():
        video = both.encode_video(batch.frames, batch.frame_mask, batch.clips)
        text = both.encode_text(batch.words, batch.word_mask)
        alone, together = model.score(text, video), both.score(text, video)
        training = both.training_scores(text, video, batch.owner)
    assert alone.branches.keys() == together.branches.keys() == training.keys() and alone.weights == together.weights
    for name, score in together.branches.items():
        assert torch.equal(score, alone.branches[name]) == (name != branch)
    assert not training[branch].paired and torch.equal(training[branch].cosine, together.branches[branch])
    if variant == "released":
        assert together.branches[branch].min() >= 0 and together.branches[branch].max() <= 1 + 1e-6


def test_amdnet_is_refused_as_it_has_no_frames() -> None:
    amdnet = models.load("amdnet")
    model = amdnet.build(amdnet.Options(hidden=8), frame_width=5, word_width=3)
    with pytest.raises(ConfigurationError, match=r"ral cannot be added .*compares words with frames.* no frames"):
        ral.build(Options(), model)


@pytest.mark.parametrize("variant", ral.VARIANTS)
def test_it_has_the_parameters_that_table_6_counts(variant: str) -> None:
    """3.26M on GMMFormer v2 with TVR's words of 768; without a second encoder of words they would be 1.33M."""
    with torch.device("meta"):
        model = gmmformer_v2.build(gmmformer_v2.Options(), frame_width=3072, word_width=768)
        module = ral.build(Options(variant=variant), model)
    assert module.csa is not None
    count = sum(parameter.numel() for parameter in module.parameters())
    encoder = sum(p.numel() for part in (module.csa.project, module.csa.attend) for p in part.parameters())
    assert round(count / 1e6, 2) == 3.26 and round((count - encoder) / 1e6, 2) == 1.33


@pytest.mark.parametrize("encoder", ["transformer", "cnn", "gru", "lstm"])
def test_its_encoder_is_built_as_the_models_with_weights_of_its_own(encoder: str) -> None:
    model = _model("ms-sl", hidden=64, encoder=encoder)
    module = ral.build(Options(), model)
    assert module.csa is not None
    theirs, ours = (part.state_dict() for part in (model.get_submodule("words.attend"), module.csa.attend))
    assert theirs.keys() == ours.keys()
    for name, weight in ours.items():
        if name.endswith("weight") and weight.ndim > 1:
            assert not torch.equal(weight, theirs[name]) and weight.std().item() == pytest.approx(
                theirs[name].std().item(), rel=0.1
            )


def _batch(frames: tuple[int, ...] = (5, 8, 1), words: tuple[int, ...] = (4, 1, 3, 2), extra: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)

    def padded(counts: tuple[int, ...], width: int, extra: int = 0) -> tuple[Tensor, Tensor]:
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        codes = torch.randn(*mask.shape, width, generator=generator) * mask[..., None]
        return nn.functional.pad(codes, (0, 0, 0, extra)), nn.functional.pad(mask, (0, extra))

    values = padded(frames, 5)
    clips = torch.randn(len(frames), 4, 5, generator=generator)
    return Batch(*values, clips, *padded(words, 3, extra), torch.arange(len(words)) % len(frames))


def _step(both: VideoTextModel, batch: Batch) -> Step:
    text = both.encode_text(batch.words, batch.word_mask)
    video = both.encode_video(batch.frames, batch.frame_mask, batch.clips)
    return Step(batch, text, video, both.training_scores(text, video, batch.owner), 0, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "settings",
    [{"variant": "paper"}, {"support": "query"}, {"proxies": 0}, {"aggregation": "local"}, {"aggregation": "global"}],
    ids=str,
)
@pytest.mark.parametrize(("frames", "words"), [((5, 8, 1), (4, 1, 3, 2)), ((1,), (1,)), ((3,), (2, 1)), ((2, 3), (1,))])
def test_a_gradient_reaches_every_parameter_of_its_own(
    base: str, settings: dict[str, Any], frames: tuple[int, ...], words: tuple[int, ...]
) -> None:
    """Of one video, or one query, what there is to tell apart is too little for some: then gradients are finite."""
    model = _model(base)
    module = _built(model, **settings).float()
    both = retriever(model, {"ral": module}).eval()
    step = _step(both, _batch(frames, words))
    branch = step.scores[BASES[base]]
    (
        torch.stack(list(module.terms(model, step).values())).sum() + (branch.cosine + branch.dot).square().sum()
    ).backward()  # type: ignore[no-untyped-call]
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        if len(frames) > 2 and not name.endswith("key.bias"):  # which cancels in the softmax
            assert parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize(
    ("settings", "matters"), [({}, True), ({"pads": False}, False), ({"variant": "paper"}, False)], ids=str
)
def test_the_padding_of_words_matters_where_it_is_said_to(settings: dict[str, Any], matters: bool) -> None:
    """Never to a score; to the losses of MSRA, with ``pads``."""
    model = _model()
    both = retriever(model, {"ral": _built(model, **settings).float()}).eval()
    assert isinstance(both, Retriever)
    module = both.objectives["ral"]
    assert isinstance(module, Ral)
    one, other = _step(both, _batch()), _step(both, _batch(extra=3))
    torch.testing.assert_close(one.scores["video"].cosine, other.scores["video"].cosine, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.scores["video"].dot, other.scores["video"].dot, rtol=0, atol=1e-6)
    losses = [module.terms(model, step) for step in (one, other)]
    for name, loss in losses[0].items():
        assert torch.isclose(loss, losses[1][name], rtol=1e-5, atol=0) != matters, name


def test_what_is_padded_may_hold_anything() -> None:
    model = _model()
    both = retriever(model, {"ral": (module := _built(model).float())}).eval()
    batch = _batch()
    dirty = replace(
        batch,
        frames=batch.frames + 5.0 * ~batch.frame_mask[..., None],
        words=batch.words + 5.0 * ~batch.word_mask[..., None],
    )
    one, other = _step(both, batch), _step(both, dirty)
    torch.testing.assert_close(one.scores["video"].cosine, other.scores["video"].cosine, rtol=0, atol=1e-6)
    losses = [module.terms(model, step) for step in (one, other)]
    for name, loss in losses[0].items():
        torch.testing.assert_close(losses[1][name], loss)


# ---- switches


def test_without_csa_the_base_scores_and_msra_reads_its_words() -> None:
    model = _model().double().eval()
    module = _built(model, csa=False, pads=False)
    assert not module.ranks and _built(model).ranks
    batch = _batch()
    text = model.encode_text(batch.words.double(), batch.word_mask)
    assert module.encode_text(model, text, batch.words, batch.word_mask) is text
    assert module.replace_branch(model, text, model.encode_video(*_inputs(batch))) == {}
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {"msra"}
    case = _case(3)
    base = TextCode(case.text.own_words, case.text.mask, case.text.sentence)
    found = module.terms(model, replace(case.step(), text=base))
    expected = _msra(case, module, Options(pads=False), 0)
    for name, weight in ral.WEIGHTS["released"].items():
        assert found[f"ral_{name}"].item() == pytest.approx(weight * expected[f"ral_{name}"], rel=1e-9)
    # With ``pads`` as well, as zeros: those codes of the model's mean nothing.
    blank = replace(base, words=case.text.own_words * case.text.mask[..., None])
    padded = _built(model, csa=False)
    one, other = (padded.terms(model, replace(case.step(), text=text)) for text in (base, blank))
    assert one == other and one["ral_matching"] != found["ral_matching"]


def _inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.frames.double(), batch.frame_mask, batch.clips.double()


@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        ({}, {"ral_matching", "ral_alignment"}),
        ({"alignment": 0.0}, {"ral_matching"}),
        ({"matching": 0.0}, {"ral_alignment"}),
        ({"alignment": 0.0, "matching": 0.0}, set()),
    ],
    ids=str,
)
def test_each_loss_alone(settings: dict[str, Any], terms: set[str]) -> None:
    case = _case(3)
    module, both = _built(**settings), _built()
    found, all_ = module.terms(_model(), case.step()), both.terms(_model(), case.step())
    assert found.keys() == terms
    for name, term in found.items():
        assert term.item() == all_[name].item()
    assert any(name.startswith("msra") for name, _ in module.named_parameters()) == bool(terms)


def test_only_proxies_are_drawn() -> None:
    for count in (0, 2):
        step = _case(3).step()
        _built(proxies=count).terms(_model(), step)
        expected = torch.Generator().manual_seed(0)
        for _ in range(2 if count else 0):  # three support sets, then three videos
            torch.randn(3, count, WIDTH, generator=expected)
        assert torch.rand(1, generator=step.rng) == torch.rand(1, generator=expected)


def test_equal_confidences_are_a_mean_over_the_words() -> None:
    model = _model().double().eval()
    module = _built(model, confidence="equal")
    batch = replace(_batch(), words=_batch().words.double())
    text = module.encode_text(model, model.encode_text(batch.words, batch.word_mask), batch.words, batch.word_mask)
    assert isinstance(text, RalText)
    video = model.encode_video(*_inputs(batch))
    case = Case(replace(text, confidence=torch.ones_like(text.confidence)), video, batch.owner)
    with torch.no_grad():
        found = module.replace_branch(model, text, video)["video"].cosine
        whole, _ = _csa(_detached(case), released=True)
    np.testing.assert_allclose(found.numpy() * batch.word_mask.sum(1)[:, None].numpy(), whole, rtol=0, atol=1e-9)


def _detached(case: Case) -> Case:
    assert case.video.frames is not None
    text = replace(case.text, own_words=case.text.own_words.detach())
    return Case(text, VideoCode(None, case.video.frames.detach(), None, case.video.frame_mask), case.owner)


def test_codes_that_are_not_its_own_are_refused() -> None:
    case = _case(3)
    plain = TextCode(case.text.own_words, case.text.mask, case.text.sentence)
    with pytest.raises(TypeError, match="not a TextCode"):
        _built().replace_branch(_model(), plain, case.video)
    with pytest.raises(TypeError, match="not a TextCode"):
        _built().terms(_model(), replace(case.step(), text=plain))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "papr"}, "did you mean 'paper'"),
        ({"aggregation": "locl"}, "did you mean 'local'"),
        ({"support": "queries"}, "unknown support of ral"),
        ({"confidence": "mean"}, "unknown confidence of ral"),
        ({"proxies": -1}, "proxies is -1, but must be at least 0"),
        ({"support_queries": 0}, "support_queries is 0, but must be at least 1"),
        ({"matching": -1.0}, "matching is -1.0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"csa": False, "matching": 0.0, "alignment": 0.0}, r"leave \+ral out"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_settings(Options, settings, where="ral")
