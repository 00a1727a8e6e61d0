"""A step's terms in bf16. Autocast runs on a GPU in earnest; on the CPU it is as strict about mixed dtypes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prvr.datasets.batch import Batch
from prvr.train import models
from prvr.train.config import from_tables
from prvr.train.retriever import retriever
from prvr.train.run import make_model, make_objectives
from prvr.train.step import TrainingStep


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    lengths, words = (9, 30, 1, 17, 5, 12), (2, 5, 1, 4, 3, 6, 2, 2, 7)
    frame_mask = torch.arange(30) < torch.tensor(lengths)[:, None]
    word_mask = torch.arange(7) < torch.tensor(words)[:, None]
    return Batch(
        torch.randn(6, 30, 12, generator=generator) * frame_mask[..., None],
        frame_mask,
        torch.randn(6, 32, 12, generator=generator),
        torch.randn(9, 7, 12, generator=generator) * word_mask[..., None],
        word_mask,
        torch.arange(9) % 6,
    )


@pytest.mark.parametrize("epoch", [0, 1000], ids=["random negatives", "hard negatives"])
@pytest.mark.parametrize("name", [f"{base}+ice+irm+tcp" for base in models.names()] + ["gmmformer-v2+ral"])
def test_autocast_gives_nearly_the_same_terms_and_gradients(name: str, epoch: int) -> None:
    tables: dict[str, Any] = {"model": name, name.split("+")[0]: {"hidden": 32, "dropout": 0.0, "input_dropout": 0.0}}
    config = from_tables(tables)
    found: list[dict[str, Tensor]] = []
    for enabled in (False, True):
        model = make_model(config, frame_width=12, word_width=12)
        objectives = make_objectives(config, model)
        step = TrainingStep(retriever=retriever(model, objectives), base=model, objectives=objectives)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            terms: dict[str, Tensor] = step(_batch(), epoch, torch.Generator().manual_seed(3))
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        named = nn.ModuleDict({"model": model, **objectives}).named_parameters()
        found.append({**terms, **{path: p.grad for path, p in named if p.grad is not None}})
    assert found[0].keys() == found[1].keys()
    for path, value in found[0].items():
        assert found[1][path].isfinite().all(), path
        if value.dim() == 0:
            torch.testing.assert_close(found[1][path].float(), value, rtol=0.1, atol=0.05)
