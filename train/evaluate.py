"""Evaluation: every query against the whole gallery, ranks, and the numbers of the field's tables.

A query's rank is 1 + the videos that score at least as high as its own: ties count against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prvr.datasets.plan import batches
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.files import written_aside
from prvr.train.interface import TextCode, VideoTextModel

CUTS = (1, 5, 10, 100)
GALLERY_BATCH, QUERY_BATCH = 200, 50
"""As in MS-SL's released evaluation."""


@dataclass(frozen=True)
class Ranking:
    """Scores of a split: ``scores`` [Q, V] float32, ``owner`` [Q] (column of each query's video), and the ids."""

    scores: Tensor
    owner: Tensor
    query_ids: tuple[str, ...]
    video_ids: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """R@1, R@5, R@10, R@100 and their sum, in percent."""
        return recalls(ranks(self.scores, self.owner))


def ranks(scores: Tensor, owner: Tensor) -> Tensor:
    """Rank of each query's own video, from 1, [Q]. ``scores`` [Q, V], ``owner`` [Q]."""
    own = scores.gather(1, owner[:, None])
    return (scores >= own).sum(1)


def recalls(ranks: Tensor) -> dict[str, float]:
    """R@k in percent for the field's k, and SumR. ``ranks`` [Q] from 1."""
    found = {f"R@{cut}": (ranks <= cut).double().mean().item() * 100 for cut in CUTS}
    return found | {"SumR": sum(found.values())}


def chance(videos: int) -> dict[str, float]:
    """What a random order of so many videos reaches in the mean."""
    found = {f"R@{cut}": min(cut, videos) / videos * 100 for cut in CUTS}
    return found | {"SumR": sum(found.values())}


@torch.inference_mode()
def rank_split(model: VideoTextModel, reader: ShardReader, collate: Collate, device: torch.device) -> Ranking:
    """Score all queries of a split against all its videos. The model is left in evaluation mode."""
    model.eval()
    positions = batches(range(len(reader)), GALLERY_BATCH)
    texts: list[TextCode] = []
    owners: list[Tensor] = []
    query_ids: list[str] = []
    for rows in positions:
        samples = [reader[row] for row in rows]
        batch = collate(samples)
        owners.append(batch.owner + rows[0])
        query_ids += [query.query_id for sample in samples for query in sample.video.queries]
        for first in range(0, len(batch.owner), QUERY_BATCH):
            part = slice(first, first + QUERY_BATCH)
            texts.append(model.encode_text(batch.words[part].to(device), batch.word_mask[part].to(device)))
    # A second pass, so that one batch of the gallery is held at a time: its codes are far larger than the queries'.
    columns: list[Tensor] = []
    for batch in stream(reader, positions, collate):
        video = model.encode_video(batch.frames.to(device), batch.frame_mask.to(device), batch.clips.to(device))
        columns.append(torch.cat([model.score(text, video).fused for text in texts]))
    return Ranking(
        torch.cat(columns, dim=1).float().cpu(),
        torch.cat(owners),
        tuple(query_ids),
        reader.index.video_ids,
    )


def write_scores(path: Path, ranking: Ranking) -> None:
    """``scores`` [Q, V] float32, ``query_ids`` and ``video_ids`` as an .npz file, whole or not at all."""
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(
            file,
            scores=ranking.scores.numpy(),
            query_ids=np.array(ranking.query_ids),
            video_ids=np.array(ranking.video_ids),
        )


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Rows of metrics as the papers print them."""
    names = [*(f"R@{cut}" for cut in CUTS), "SumR"]
    width = max(len(name) for name in rows)
    lines = [" " * width + "".join(f"{name:>8}" for name in names)]
    lines += [f"{name:{width}}" + "".join(f"{row[metric]:8.1f}" for metric in names) for name, row in rows.items()]
    return "\n".join(lines)
