"""GMMFormer, v2, RAL on v2 and AMDNet against tensors that their authors' released code made (``golden/prvr``).

MS-SL has its own file. AMDNet has no random draws, no optimiser steps and no recalls there.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from prvr.datasets.batch import Batch
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build as build_settings
from prvr.train import models, objectives
from prvr.train.interface import Objective, Scores, Step, VideoTextModel
from prvr.train.objectives import ral
from prvr.train.optim import BertAdam, decay_groups
from prvr.train.retriever import Retriever, retriever

RAL = "gmmformer-v2+ral"
FOLDERS = {"gmmformer": "gmmformer", "gmmformer-v2": "gmmformerv2", RAL: "ral", "amdnet": "amdnet"}
GMMFORMERS = ("gmmformer", "gmmformer-v2", RAL)
RAND, HARD = 0, 20  # epochs before and after hard negatives begin
TERMS = {
    "clip_nce": "clip_nce_loss",
    "clip_triplet": "clip_trip_loss",
    "frame_nce": "frame_nce_loss",
    "frame_triplet": "frame_trip_loss",
    "query_diversity": "qdl_loss",
    "matching": "ot_loss",
    "span_diversity": "mask_div_loss",
    "relevance": "match_loss",
    "ral_matching": "MIL_loss",
    "ral_alignment": "vib_loss",
}


@dataclass(frozen=True)
class Golden:
    """``tensors`` and ``info`` of a released system, and its weights."""

    name: str
    module: ModuleType
    tensors: Mapping[str, Tensor]
    info: Mapping[str, Any]
    folder: Path

    def weights(self, file: str) -> dict[str, Tensor]:
        """One of the files of parameters (or gradients), under our names."""
        return self.renamed(load_file(self.folder / f"{file}.safetensors"))

    def renamed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What stands under the released names, under ours."""
        if self.name == RAL:
            base, own = ral.from_released(state)
            return {f"model.{name}": base[name] for name in base} | {
                f"objectives.ral.{name}": own[name] for name in own
            }
        ours: dict[str, Tensor] = self.module.from_released(state)
        return ours

    def built(self, **options: Any) -> VideoTextModel:
        """As it is initialised."""
        if self.name == RAL:
            options |= {
                "clip_weight": self.info["cfg"]["clip_scale_w"],
                "frame_weight": self.info["cfg"]["frame_scale_w"],
            }
        model: VideoTextModel = self.module.build(
            self.module.Options(hidden=32, **options), frame_width=64, word_width=48
        )
        return retriever(model, {"ral": ral.build(ral.Options(), model)}) if self.name == RAL else model

    def model(self) -> VideoTextModel:
        """In evaluation mode, with the golden weights; no dropout."""
        model = self.built(input_dropout=0.0, dropout=0.0)
        model.load_state_dict(self.weights("state_dict"), strict=True)
        return model.eval()

    def batch(self, kind: str) -> Batch:
        """What the released data loader fed: ``trainin`` or ``evalin``; an evaluation batch has owners too."""
        owner = self.tensors["trainin_text_labels"]
        if kind == "evalin":
            videos = [query.split("#")[0] for query in self.info["eval_query_order"]]
            owner = torch.tensor([self.info["eval_video_order"].index(video) for video in videos])
        clips = self.tensors[f"{kind}_clip_video_features"]
        words = self.tensors[f"{kind}_text_feat"]
        if words.ndim == 2:  # AMDNet: a sentence, and frames that it does not read
            ones = torch.ones(len(words), 1, dtype=torch.bool)
            return Batch(clips[:, :1], torch.ones(len(clips), 1, dtype=torch.bool), clips, words[:, None], ones, owner)
        frames, mask = self.tensors[f"{kind}_frame_video_features"], self.tensors[f"{kind}_videos_mask"].bool()
        return Batch(frames, mask, clips, words, self.tensors[f"{kind}_text_mask"].bool(), owner)

    def canonical(self) -> Tensor:
        """[Q], row of the evaluation batch for each row of the golden scores; videos are in canonical order already."""
        captions = json.loads((self.folder.parent / "ids.json").read_text())["captions"]
        return torch.tensor([self.info["eval_query_order"].index(caption) for caption in captions])


@pytest.fixture(scope="module", params=FOLDERS)
def golden(shared: Path, request: pytest.FixtureRequest) -> Golden:
    folder = shared / "golden" / "prvr" / FOLDERS[request.param]
    info = json.loads((folder / "info.json").read_text())
    module = models.load(request.param.split("+")[0])
    return Golden(request.param, module, load_file(folder / "golden.safetensors"), info, folder)


def _scores(model: VideoTextModel, batch: Batch) -> Scores:
    with torch.no_grad():
        video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
        return model.score(model.encode_text(batch.words, batch.word_mask), video)


def _step(model: VideoTextModel, batch: Batch, *, epoch: int, seed: int) -> Step:
    text = model.encode_text(batch.words, batch.word_mask)
    video = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    scores = model.training_scores(text, video, batch.owner)
    return Step(batch, text, video, scores, epoch, torch.Generator().manual_seed(seed))


def _terms(model: VideoTextModel, step: Step) -> dict[str, Tensor]:
    """Of the model's own objectives, as the goldens were made with the defaults (ActivityNet's)."""
    terms: dict[str, Tensor] = {}
    if isinstance(model, Retriever):  # The released code draws RAL's numbers before those of the ranking losses.
        for objective in model.objectives.values():
            assert isinstance(objective, Objective)
            terms |= objective.terms(model.model, step)
    for name, settings in model.default_objectives.items():
        module = objectives.load(name)
        terms |= module.build(build_settings(module.Options, settings, where=name), model).terms(model, step)
    return terms


def _total(terms: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


def test_codes_are_the_released_ones(golden: Golden) -> None:
    model, batch, rows = golden.model(), golden.batch("evalin"), golden.canonical()
    text = model.encode_text(batch.words, batch.word_mask)
    video: Any = model.encode_video(batch.frames, batch.frame_mask, batch.clips)
    close = torch.testing.assert_close
    close(text.sentence[rows], golden.tensors["eval_query_emb"], rtol=0, atol=1e-5)
    close(video.moments, golden.tensors["eval_clip_feat"], rtol=0, atol=1e-5)
    if golden.name == "gmmformer":
        close(video.global_, golden.tensors["eval_frame_feat"], rtol=0, atol=1e-5)
    if golden.name in ("gmmformer-v2", RAL):
        close(video.frames, golden.tensors["eval_frame_feat"], rtol=0, atol=1e-5)
    if golden.name == "amdnet":
        close(video.spans, golden.tensors["eval_moment_masks"], rtol=0, atol=1e-5)
        close(video.span_features, golden.tensors["eval_moment_feat"], rtol=1e-5, atol=2e-5)
        close(video.global_, golden.tensors["eval_video_global"], rtol=0, atol=1e-5)


def test_scores_are_the_released_ones(golden: Golden) -> None:
    scores, rows = _scores(golden.model(), golden.batch("evalin")), golden.canonical()
    fused = golden.tensors["eval_scores" if golden.name == "amdnet" else "eval_fused"]
    for branch, score in scores.branches.items():
        expected = fused if golden.name == "amdnet" else golden.tensors[f"eval_{branch}"]
        torch.testing.assert_close(score[rows], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.fused[rows], fused, rtol=0, atol=1e-5)


@pytest.mark.parametrize("golden", GMMFORMERS, indirect=True)
def test_scores_in_small_batches_are_the_released_ones(golden: Golden) -> None:
    """Four videos and seven queries at a time, each batch padded to its own longest."""
    model, batch, rows = golden.model(), golden.batch("evalin"), golden.canonical()
    parts = []
    for videos in torch.split(torch.arange(12), 4):
        longest = int(batch.frame_mask[videos].sum(1).max())
        for queries in torch.split(rows, 7):
            words = int(batch.word_mask[queries].sum(1).max())
            cut = Batch(
                batch.frames[videos, :longest],
                batch.frame_mask[videos, :longest],
                batch.clips[videos],
                batch.words[queries, :words],
                batch.word_mask[queries, :words],
                torch.zeros(len(queries), dtype=torch.int64),
            )
            parts.append(_scores(model, cut))
    for branch in ("clip", "frame", "fused"):
        scores = [part.fused if branch == "fused" else part.branches[branch] for part in parts]
        columns = [torch.cat(scores[first : first + 5]) for first in range(0, len(scores), 5)]
        torch.testing.assert_close(torch.cat(columns, dim=1), golden.tensors[f"evalb4_{branch}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("golden", GMMFORMERS, indirect=True)
def test_ranks_and_recalls_are_the_released_ones(golden: Golden) -> None:
    batch, rows = golden.batch("evalin"), golden.canonical()
    fused, owner = _scores(golden.model(), batch).fused[rows], batch.owner[rows]
    ranks = (fused > fused.gather(1, owner[:, None])).sum(1) + 1
    assert ranks.tolist() == golden.tensors["eval_ranks"].tolist()
    recalls = [100 * (ranks <= cut).double().mean() for cut in (1, 5, 10, 100)]
    torch.testing.assert_close(torch.stack([*recalls, torch.stack(recalls).sum()]), golden.tensors["eval_recalls"])


@pytest.mark.parametrize(("kind", "epoch"), [("rand", RAND), ("hard", HARD)])
def test_losses_are_the_released_ones(golden: Golden, kind: str, epoch: int) -> None:
    model = golden.model()
    terms = _terms(model, _step(model, golden.batch("trainin"), epoch=epoch, seed=123))
    prefix = "loss_" if golden.name == "amdnet" else f"loss_{kind}_"
    if golden.name == "amdnet":
        assert terms.pop("clip_triplet") == 0
    expected = {name: golden.tensors[prefix + TERMS[name]].squeeze() for name in terms}
    released = {key.removeprefix(prefix) for key in golden.tensors if key.startswith(prefix)} - {"total"}
    assert {TERMS[name] for name in terms} == released
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], rtol=1e-5, atol=0, msg=name)
    torch.testing.assert_close(_total(terms), golden.tensors[f"{prefix}total"].squeeze(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("golden", GMMFORMERS, indirect=True)
@pytest.mark.parametrize(("kind", "epoch"), [("rand", RAND), ("hard", HARD)])
def test_random_draws_are_the_released_ones(
    golden: Golden, kind: str, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers, in the same order, in as many calls: the seed means the same here and there."""
    drawn: list[Tensor] = []

    def recorded(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def recording(*args: Any, **settings: Any) -> Tensor:
            drawn.append(draw(*args, **settings))
            return drawn[-1]

        return recording

    model = golden.model()
    step = _step(model, golden.batch("trainin"), epoch=epoch, seed=123)
    for name in ("randint", "randn"):
        monkeypatch.setattr(torch, name, recorded(getattr(torch, name)))
    _terms(model, step)
    expected = [golden.tensors[key] for key in sorted(golden.tensors) if key.startswith(f"draw_{kind}_")]
    assert [draw.tolist() for draw in drawn] == [draw.tolist() for draw in expected]


def test_gradients_are_the_released_ones(golden: Golden) -> None:
    model = golden.model().train()
    terms = _terms(model, _step(model, golden.batch("trainin"), epoch=RAND, seed=123))
    _total(terms).backward()  # type: ignore[no-untyped-call]
    parameters = dict(model.named_parameters())
    expected = golden.weights("grads" if golden.name == "amdnet" else "grads_rand")
    assert parameters.keys() == expected.keys()
    for name, wanted in expected.items():
        gradient = parameters[name].grad
        assert gradient is not None, name
        # A key's bias cancels in the softmax: its gradient is rounding there and here, hence the absolute part.
        assert (gradient - wanted).norm() <= 1e-3 * wanted.norm() + 1e-6, name


@pytest.mark.parametrize("golden", GMMFORMERS, indirect=True)
def test_five_steps_of_training_are_the_released_ones(golden: Golden) -> None:
    model, batch = golden.model().train(), golden.batch("trainin")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = BertAdam(decay_groups(model, 0.01), lr=2.5e-4, total_steps=1000, warmup=0.01)
    losses = []
    for step in range(5):
        loss = _total(_terms(model, _step(model, batch, epoch=RAND, seed=1000 + step)))
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


def test_what_decays_is_what_decays_in_the_released_code(golden: Golden) -> None:
    """There, the exemption is by name: what contains ``bias`` or ``LayerNorm.weight``."""
    theirs = load_file(golden.folder / "state_dict.safetensors")
    decays = {key: torch.tensor(not ("bias" in key or "LayerNorm.weight" in key)) for key in theirs}
    expected = {name for name, flag in golden.renamed(decays).items() if flag}
    model = golden.model()
    decayed = {id(parameter) for parameter in decay_groups(model, 0.01)[0]["params"]}
    assert {name for name, parameter in model.named_parameters() if id(parameter) in decayed} == expected


def test_initialisation_has_the_released_statistics(golden: Golden) -> None:
    torch.manual_seed(0)
    ours = golden.built().state_dict()
    for name, theirs in golden.weights("init_seed11").items():
        if theirs.min() == theirs.max():
            assert torch.equal(ours[name], theirs), name
            continue
        deviation = 1.0 if name.endswith("token") else 0.02
        error = 5 * deviation / theirs.numel() ** 0.5  # five standard errors of the mean; the deviation's is smaller
        assert ours[name].mean().item() == pytest.approx(theirs.mean().item(), abs=2 * error), name
        assert ours[name].std().item() == pytest.approx(deviation, abs=error), name
        assert theirs.std().item() == pytest.approx(deviation, abs=error), name


def test_a_state_that_is_not_the_released_one_is_refused(golden: Golden) -> None:
    state = load_file(golden.folder / "state_dict.safetensors")
    with pytest.raises(ConfigurationError, match="surplus"):
        golden.renamed(state | {"surplus": torch.zeros(1)})
    parts = ["clip_input_proj.net.1.weight"]
    if golden.name == RAL:
        parts += [
            "pie_net_text.fc.bias",
            "text_weight_fc.2.bias",
            "frame_branch_query_proj.LayerNorm.bias",
            "query_encoder.self.key.bias",
        ]
    for part in parts:
        with pytest.raises(ConfigurationError, match=re.escape(part)):
            golden.renamed({name: tensor for name, tensor in state.items() if name != part})
