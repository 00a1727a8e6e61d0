"""MS-SL against tensors that the authors' released code made (``golden/prvr/mssl``), and what is its own."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from prvr.datasets.batch import Batch
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Scores, Step, TextCode, VideoCode
from prvr.train.layers import TransformerLayer
from prvr.train.models import ms_sl
from prvr.train.models.ms_sl import MsSl, Options
from prvr.train.objectives import ranking
from prvr.train.optim import BertAdam, decay_groups

RAND, HARD = 0, 20  # epochs before and after hard negatives begin


@dataclass(frozen=True)
class Golden:
    """``tensors`` and ``info`` of the released system, and its weights."""

    tensors: Mapping[str, Tensor]
    info: Mapping[str, Any]
    folder: Path

    def weights(self, name: str) -> dict[str, Tensor]:
        """One of the files of parameters (or gradients), under our names."""
        return ms_sl.from_released(load_file(self.folder / f"{name}.safetensors"))

    def batch(self, kind: str) -> Batch:
        """What the released data loader fed: ``trainin`` or ``evalin``; an evaluation batch has owners too."""
        owner = self.tensors["trainin_text_labels"]
        if kind == "evalin":
            videos = [query.split("#")[0] for query in self.info["eval_query_order"]]
            owner = torch.tensor([self.info["eval_video_order"].index(video) for video in videos])
        return Batch(
            self.tensors[f"{kind}_frame_video_features"],
            self.tensors[f"{kind}_videos_mask"].bool(),
            self.tensors[f"{kind}_clip_video_features"],
            self.tensors[f"{kind}_text_feat"],
            self.tensors[f"{kind}_text_mask"].bool(),
            owner,
        )

    def canonical(self) -> Tensor:
        """[Q], row of the evaluation batch for each row of the golden scores; videos are in canonical order already."""
        captions = json.loads((self.folder.parent / "ids.json").read_text())["captions"]
        return torch.tensor([self.info["eval_query_order"].index(caption) for caption in captions])


@pytest.fixture(scope="module")
def golden(shared: Path) -> Golden:
    folder = shared / "golden" / "prvr" / "mssl"
    info = json.loads((folder / "info.json").read_text())
    return Golden(load_file(folder / "golden.safetensors"), info, folder)


def _model(**settings: Any) -> MsSl:
    options = Options(**{"hidden": 32, "input_dropout": 0.0, "dropout": 0.0, **settings})
    return ms_sl.build(options, frame_width=64, word_width=48)


@pytest.fixture
def model(golden: Golden) -> MsSl:
    model = _model()
    model.load_state_dict(golden.weights("state_dict"), strict=True)
    return model.eval()


def _scores(model: MsSl, batch: Batch) -> Scores:
    with torch.no_grad():
        video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
        return model.score(model.encode_text(batch.words, batch.word_mask), video)


def _step(model: MsSl, batch: Batch, *, epoch: int, seed: int) -> Step:
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    scores = model.training_scores(text, video, batch.owner)
    return Step(batch, text, video, scores, epoch, torch.Generator().manual_seed(seed))


def _terms(model: MsSl, step: Step) -> dict[str, Tensor]:
    return ranking.build(ranking.Options(**model.default_objectives["ranking"]), model).terms(model, step)


def _random_batch(videos: int, queries: int, frames: int = 20, words: int = 7) -> Batch:
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return Batch(
        random(videos, frames, 64),
        torch.ones(videos, frames, dtype=torch.bool),
        random(videos, 32, 64),
        random(queries, words, 48),
        torch.ones(queries, words, dtype=torch.bool),
        torch.arange(queries) % videos,
    )


# --- against the released code


def test_codes_are_the_released_ones(golden: Golden, model: MsSl) -> None:
    batch = golden.batch("evalin")
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    proposals = video.windows @ video.moments
    torch.testing.assert_close(text.sentence[golden.canonical()], golden.tensors["eval_query_emb"], rtol=0, atol=1e-5)
    torch.testing.assert_close(proposals, golden.tensors["eval_clip_feat"], rtol=0, atol=1e-5)
    torch.testing.assert_close(video.inverse_norms, 1 / proposals.norm(dim=-1))
    real = batch.frame_mask
    torch.testing.assert_close(video.frames[real], golden.tensors["eval_frame_feat"][real], rtol=0, atol=1e-5)


def test_scores_are_the_released_ones(golden: Golden, model: MsSl) -> None:
    scores, rows = _scores(model, golden.batch("evalin")), golden.canonical()
    for branch in ("clip", "frame"):
        torch.testing.assert_close(scores.branches[branch][rows], golden.tensors[f"eval_{branch}"], rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.fused[rows], golden.tensors["eval_fused"], rtol=0, atol=1e-5)


def test_scores_in_small_batches_are_the_released_ones(golden: Golden, model: MsSl) -> None:
    """Four videos and seven queries at a time, each batch padded to its own longest."""
    batch, rows = golden.batch("evalin"), golden.canonical()
    words, word_mask = batch.words[rows], batch.word_mask[rows]
    columns: list[Scores] = []
    with torch.no_grad():
        texts = []
        for part, mask in zip(torch.split(words, 7), torch.split(word_mask, 7), strict=True):
            longest = int(mask.sum(1).max())
            texts.append(model.encode_text(part[:, :longest], mask[:, :longest]))
        for chosen in torch.split(torch.arange(12), 4):
            longest = int(batch.frame_mask[chosen].sum(1).max())
            frames, mask = batch.frames[chosen, :longest], batch.frame_mask[chosen, :longest]
            video = model.encode_video(frames, mask, batch.clips[chosen])
            parts = [model.score(text, video) for text in texts]
            branches = {name: torch.cat([part.branches[name] for part in parts]) for name in ("clip", "frame")}
            columns.append(Scores(branches, model.weights))
    for branch in ("clip", "frame"):
        score = torch.cat([column.branches[branch] for column in columns], dim=1)
        torch.testing.assert_close(score, golden.tensors[f"evalb4_{branch}"], rtol=0, atol=1e-5)
    fused = torch.cat([column.fused for column in columns], dim=1)
    torch.testing.assert_close(fused, golden.tensors["evalb4_fused"], rtol=0, atol=1e-5)


def test_ranks_and_recalls_are_the_released_ones(golden: Golden, model: MsSl) -> None:
    batch, rows = golden.batch("evalin"), golden.canonical()
    fused, owner = _scores(model, batch).fused[rows], batch.owner[rows]
    ranks = (fused > fused.gather(1, owner[:, None])).sum(1) + 1
    assert ranks.tolist() == golden.tensors["eval_ranks"].tolist()
    recalls = [100 * (ranks <= cut).double().mean() for cut in (1, 5, 10, 100)]
    torch.testing.assert_close(torch.stack([*recalls, torch.stack(recalls).sum()]), golden.tensors["eval_recalls"])


@pytest.mark.parametrize(("kind", "epoch"), [("rand", RAND), ("hard", HARD)])
def test_losses_are_the_released_ones(golden: Golden, model: MsSl, kind: str, epoch: int) -> None:
    terms = _terms(model, _step(model, golden.batch("trainin"), epoch=epoch, seed=123))
    released = {"nce": "nce", "triplet": "trip"}
    assert terms.keys() == {f"{branch}_{loss}" for branch in ("clip", "frame") for loss in released}
    for name, term in terms.items():
        branch, loss = name.split("_")
        expected = golden.tensors[f"loss_{kind}_{branch}_{released[loss]}_loss"].squeeze()
        torch.testing.assert_close(term, expected, rtol=1e-5, atol=0)
    total = torch.stack(list(terms.values())).sum()
    torch.testing.assert_close(total, golden.tensors[f"loss_{kind}_total"].squeeze(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("kind", "epoch"), [("rand", RAND), ("hard", HARD)])
def test_random_draws_are_the_released_ones(
    golden: Golden, model: MsSl, kind: str, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers, in the same order, in as many calls: the seed means the same here and there."""
    drawn: list[Tensor] = []
    randint: Callable[..., Tensor] = torch.randint

    def recorded(*args: Any, **settings: Any) -> Tensor:
        drawn.append(randint(*args, **settings))
        return drawn[-1]

    step = _step(model, golden.batch("trainin"), epoch=epoch, seed=123)
    monkeypatch.setattr(torch, "randint", recorded)
    _terms(model, step)
    expected = [golden.tensors[key] for key in sorted(golden.tensors) if key.startswith(f"draw_{kind}_")]
    assert [draw.tolist() for draw in drawn] == [draw.tolist() for draw in expected]


def test_gradients_are_the_released_ones(golden: Golden, model: MsSl) -> None:
    model.train()
    terms = _terms(model, _step(model, golden.batch("trainin"), epoch=RAND, seed=123))
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    parameters = dict(model.named_parameters())
    expected = golden.weights("grads_rand")
    assert parameters.keys() == expected.keys()
    for name, wanted in expected.items():
        gradient = parameters[name].grad
        assert gradient is not None, name
        # A key's bias cancels in the softmax: its gradient is rounding there and here, hence the absolute part.
        assert (gradient - wanted).norm() <= 1e-3 * wanted.norm() + 1e-6, name


def test_five_steps_of_training_are_the_released_ones(golden: Golden, model: MsSl) -> None:
    model.train()
    batch = golden.batch("trainin")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = BertAdam(decay_groups(model, 0.01), lr=2.5e-4, total_steps=1000, warmup=0.01)
    losses = []
    for step in range(5):
        terms = _terms(model, _step(model, batch, epoch=RAND, seed=1000 + step))
        loss = torch.stack(list(terms.values())).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(golden.info["losses_5steps"], rel=1e-4)
    for name, wanted in golden.weights("state_after5").items():
        torch.testing.assert_close(model.state_dict()[name], wanted, rtol=0, atol=1e-5)
        # The steps are small, so those that were made are compared too; a key's bias moves by rounding, 4e-7.
        moved = wanted - start[name]
        assert (model.state_dict()[name] - wanted).norm() <= 1e-2 * moved.norm() + 1e-6, name


def test_initialisation_has_the_released_statistics(golden: Golden) -> None:
    torch.manual_seed(0)
    ours = _model().state_dict()
    for name, theirs in golden.weights("init_seed11").items():
        if theirs.min() == theirs.max():
            assert torch.equal(ours[name], theirs), name
            continue
        error = 5 * 0.02 / theirs.numel() ** 0.5  # five standard errors of the mean; the deviation's is smaller
        assert ours[name].mean().item() == pytest.approx(theirs.mean().item(), abs=2 * error), name
        assert ours[name].std().item() == pytest.approx(0.02, abs=error), name
        assert theirs.std().item() == pytest.approx(0.02, abs=error), name


def test_a_state_that_is_not_the_released_one_is_refused(golden: Golden) -> None:
    state = load_file(golden.folder / "state_dict.safetensors")
    with pytest.raises(ConfigurationError, match="surplus"):
        ms_sl.from_released(state | {"surplus": torch.zeros(1)})
    del state["mapping_linear.0.weight"]
    with pytest.raises(ConfigurationError, match="mapping_linear"):
        ms_sl.from_released(state)


# --- by itself


@pytest.mark.parametrize("clips", [1, 2, 32])
def test_proposals_are_all_runs_of_moments_by_size(clips: int) -> None:
    windows = ms_sl.proposal_windows(clips)
    moments = torch.randn(1, 3, clips, generator=torch.Generator().manual_seed(1))
    pooled = [nn.functional.avg_pool1d(moments, size, stride=1)[0].T for size in range(1, clips + 1)]
    assert windows.shape == (clips * (clips + 1) // 2, clips)
    torch.testing.assert_close(windows @ moments[0].T, torch.cat(pooled))


@pytest.mark.parametrize("variant", ms_sl.VARIANTS)
def test_scores_are_equations_5_to_7(variant: str) -> None:
    """One pair at a time, written as the paper writes it."""
    model = _sharp(_model(variant=variant).eval())
    batch = _random_batch(videos=3, queries=4)
    scores = _scores(model, batch)
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    for q, query in enumerate(text.sentence):
        for v in range(3):
            proposals = video.windows @ video.moments[v]
            cosines = nn.functional.cosine_similarity(proposals, query[None])
            key_clip = proposals[cosines.argmax()]
            attention = (model.key(video.frames[v]) @ key_clip).softmax(0)
            aggregated = attention @ model.value(video.frames[v])
            frame = nn.functional.cosine_similarity(aggregated, query, dim=0)
            torch.testing.assert_close(scores.branches["clip"][q, v], cosines.max())
            torch.testing.assert_close(scores.branches["frame"][q, v], frame)


def test_training_chooses_the_proposal_of_each_similarity_by_itself() -> None:
    model = _sharp(_model().eval())
    batch = _random_batch(videos=3, queries=40)
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    proposals = video.windows @ video.moments
    products = torch.einsum("qd,vpd->qvp", text.sentence, proposals)
    cosines = products / proposals.norm(dim=-1) / text.sentence.norm(dim=-1)[:, None, None]
    assert (products.argmax(-1) != cosines.argmax(-1)).any()
    branch = model.training_scores(text, video, batch.owner)["clip"]
    torch.testing.assert_close(branch.dot, products.amax(-1))
    torch.testing.assert_close(branch.cosine, cosines.amax(-1))


def test_a_paired_column_is_the_owners_view() -> None:
    """Row i, column j: query i against query j's video, under query j's key clip and not its own."""
    model = _sharp(_model().eval())
    batch = _random_batch(videos=2, queries=6)
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    paired = model.training_scores(text, video, batch.owner)["frame"]
    frame = model.score(text, video).branches["frame"]
    torch.testing.assert_close(paired.cosine.diagonal(), frame.gather(1, batch.owner[:, None]).squeeze(1))
    assert not torch.allclose(paired.cosine, frame[:, batch.owner])
    lengths = text.sentence.norm(dim=-1)[:, None]
    ratio = paired.dot / (paired.cosine * lengths)  # the length of each column's frame vector
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-3, atol=1e-5)


def test_a_frame_score_of_the_paper_is_of_the_queries_own_key_clip_in_training_too() -> None:
    """Equations 6 and 7 with r built for each pair, in double precision; and their gradient."""
    model = _sharp(_model(variant="paper").double().eval())
    batch = _random_batch(videos=3, queries=5)
    mask = torch.arange(20) < torch.tensor([[20], [1], [7]])
    text = model.encode_text(batch.words.double(), batch.word_mask)
    video = model.encode_video(batch.frames.double(), mask, batch.clips.double())
    branch = model.training_scores(text, video, batch.owner)["frame"]
    assert not branch.paired and branch.cosine.shape == (5, 3)

    plain = torch.zeros(2, 5, 3, dtype=torch.float64)
    for q, query in enumerate(text.sentence):
        for v, (moments, frames) in enumerate(zip(video.moments, video.frames, strict=True)):
            proposals = video.windows @ moments
            key_clip = proposals[nn.functional.cosine_similarity(proposals, query[None]).argmax()]
            real = frames[mask[v]]
            aggregated = (model.key(real) @ key_clip).softmax(0) @ model.value(real)
            plain[0, q, v] = nn.functional.cosine_similarity(aggregated, query, dim=0)
            plain[1, q, v] = aggregated @ query
    torch.testing.assert_close(torch.stack([branch.cosine, branch.dot]), plain)

    parameters = [p for name, p in model.named_parameters() if not name.endswith("attention.key.bias")]
    ours, theirs = (
        torch.autograd.grad(similarities.square().sum(), parameters, retain_graph=True)
        for similarities in (torch.stack([branch.cosine, branch.dot]), plain)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_each_variant_has_its_layers_and_its_losses() -> None:
    released, paper = _model(), _model(variant="paper")
    assert not any(isinstance(module, TransformerLayer) for module in released.modules())
    assert sum(isinstance(module, TransformerLayer) for module in paper.modules()) == 3
    assert "form" not in released.default_objectives["ranking"]
    assert paper.default_objectives["ranking"]["form"] == "paper"


def test_variants_are_of_the_published_sizes() -> None:
    """Parameters by table 2 of Ren et al. on ActivityNet Captions, of the released code; operations by table 5 of MS-SL,
    one frame sequence and one query of TVR, of the paper's layers, which leave its inner width open."""
    model = ms_sl.build(Options(), frame_width=1024, word_width=1024)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(3.37, abs=0.005)
    model = ms_sl.build(Options(variant="paper"), frame_width=3072, word_width=768).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.encode_text(torch.zeros(1, 30, 768), torch.ones(1, 30, dtype=torch.bool))
        model.encode_video(torch.zeros(1, 128, 3072), torch.ones(1, 128, dtype=torch.bool), torch.zeros(1, 32, 3072))
    assert counter.get_total_flops() / 1e9 == pytest.approx(1.22, rel=0.05)


@pytest.mark.parametrize("encoder", ms_sl.ENCODERS)
def test_what_is_padded_may_hold_anything(encoder: str) -> None:
    model, batch = _sharp(_model(encoder=encoder).eval()), _random_batch(videos=2, queries=3)
    frame_mask = torch.arange(20) < torch.tensor([[20], [4]])
    word_mask = torch.arange(7) < torch.tensor([[1], [7], [5]])
    clean = Batch(
        batch.frames * frame_mask[..., None],
        frame_mask,
        batch.clips,
        batch.words * word_mask[..., None],
        word_mask,
        batch.owner,
    )
    dirty = Batch(batch.frames, frame_mask, batch.clips, batch.words, word_mask, batch.owner)
    torch.testing.assert_close(_scores(model, dirty).fused, _scores(model, clean).fused, rtol=0, atol=1e-6)


def test_portions_do_not_change_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = _sharp(_model().eval()), _random_batch(videos=5, queries=9)
    whole, step = _scores(model, batch), _step(model, batch, epoch=0, seed=0)
    monkeypatch.setattr(ms_sl, "_ELEMENTS", 1)
    monkeypatch.setattr(ms_sl, "_VIDEOS", 2)
    parts, again = _scores(model, batch), _step(model, batch, epoch=0, seed=0)
    for name in whole.branches:
        torch.testing.assert_close(parts.branches[name], whole.branches[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(again.scores[name].dot, step.scores[name].dot)


def test_words_past_the_last_are_not_read() -> None:
    model, batch = _model(max_words=4).eval(), _random_batch(videos=1, queries=2)
    text = model.encode_text(batch.words, batch.word_mask)
    cut = model.encode_text(batch.words[:, :4], batch.word_mask[:, :4])
    assert text.words.shape[:2] == text.mask.shape == (2, 4)
    torch.testing.assert_close(text.sentence, cut.sentence)


def test_inputs_of_another_shape_are_refused() -> None:
    model, batch = _model(clips=8, max_frames=16).eval(), _random_batch(videos=1, queries=1)
    with pytest.raises(ValueError, match="32 clips a video, but the model takes 8"):
        model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    with pytest.raises(ValueError, match="a sequence of 20, but the position table has 16 rows"):
        model.encode_video(batch.frames, batch.frame_mask, batch.clips[:, :8])
    text = model.encode_text(batch.words, batch.word_mask)
    with pytest.raises(TypeError, match="not a VideoCode"):
        model.score(text, VideoCode(None, None, None, None))


def test_ranking_weights_of_the_branches_are_options() -> None:
    batch = _random_batch(videos=2, queries=2)
    scores = _scores(_model(clip_weight=0.5, frame_weight=0.25), batch)
    torch.testing.assert_close(scores.fused, 0.5 * scores.branches["clip"] + 0.25 * scores.branches["frame"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 30}, "hidden 30 does not divide into 4 heads"),
        ({"dropout": 1.0}, r"dropout is 1.0, but must be in \[0, 1\)"),
        ({"clips": 0}, "clips is 0, but must be at least 1"),
        ({"clip_weight": -0.1}, "clip_weight is -0.1, but must be finite and not negative"),
        ({"clips": 200}, "clips 200 must not exceed max_frames 128"),
        ({"feed_forward": 0}, "feed_forward is 0, but must be at least 1"),
        ({"encoder": "gru", "hidden": 33, "heads": 3}, "hidden 33 does not divide into two directions of gru"),
    ],
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options(**settings)


def test_a_variant_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(UnknownName, match="'newest': known: paper, released"):
        Options(variant="newest")
    with pytest.raises(UnknownName, match="did you mean 'lstm'"):
        Options(encoder="bilstm")


@pytest.mark.parametrize("encoder", ms_sl.ENCODERS)
def test_text_without_words_is_not_nan(encoder: str) -> None:
    model, batch = _model(encoder=encoder).eval(), _random_batch(videos=1, queries=1)
    text = model.encode_text(batch.words, torch.zeros_like(batch.word_mask))
    assert isinstance(text, TextCode) and text.sentence.isfinite().all()


def _sharp(model: MsSl) -> MsSl:
    """Weights ten times the initial ones, so that attention prefers some frames and proposals differ in length."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model
