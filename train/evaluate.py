"""Evaluation: every query of a split against its whole gallery."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prvr.datasets.plan import batches
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.files import written_aside
from prvr.manifests.split import Query, Video
from prvr.train.interface import TextCode, VideoTextModel
from prvr.train.metrics import GROUPS, grouped, median_rank, ranks, recalls, video_ranks
from prvr.train.ranks import ALONE, World

QUERY_BATCH = 50
"""As in MS-SL's released evaluation."""


@dataclass(frozen=True)
class Ranking:
    """Scores of a split: ``scores`` [Q, V] float32, ``owner`` [Q] (column of each query's video), the ids, and ``ratios`` [Q],
    moment length over video length, NaN where either is unknown."""

    scores: Tensor
    owner: Tensor
    query_ids: tuple[str, ...]
    video_ids: tuple[str, ...]
    ratios: Tensor

    def metrics(self) -> dict[str, float]:
        """R@1, R@5, R@10, R@100 and their sum, in percent."""
        return recalls(self.ranks())

    def ranks(self) -> Tensor:
        """Of each query's own video, from 1, [Q]."""
        return ranks(self.scores, self.owner)

    def report(self) -> dict[str, Any]:
        """Both directions, median ranks, and groups by moment-to-video ratio."""
        found, reverse = self.ranks(), video_ranks(self.scores, self.owner)
        return {
            "t2v": recalls(found),
            "v2t": recalls(reverse),
            "median_rank": {"t2v": median_rank(found), "v2t": median_rank(reverse)},
            "by_moment_ratio": {name: grouped(found, self.ratios, bounds) for name, bounds in GROUPS.items()},
        }


@torch.inference_mode()
def rank_split(
    model: VideoTextModel, reader: ShardReader, collate: Collate, device: torch.device, world: World = ALONE
) -> Ranking:
    """Score all queries of a split against all its videos. The model is left in evaluation mode.

    Of several ranks each takes some of the gallery's batches, and all get the same result.
    """
    model.eval()
    positions = batches(range(len(reader)), model.gallery_batch)
    texts: list[TextCode] = []
    owners: list[Tensor] = []
    query_ids: list[str] = []
    ratios: list[float] = []
    for rows in positions:
        samples = [reader[row] for row in rows]
        batch = collate(samples)
        owners.append(batch.owner + rows[0])
        query_ids += [query.query_id for sample in samples for query in sample.video.queries]
        ratios += [_ratio(query, sample.video) for sample in samples for query in sample.video.queries]
        for first in range(0, len(batch.owner), QUERY_BATCH):
            part = slice(first, first + QUERY_BATCH)
            texts.append(model.encode_text(batch.words[part].to(device), batch.word_mask[part].to(device)))
    # A second pass, so that one batch of the gallery is held at a time: its codes are far larger than the queries'.
    scores = torch.zeros(len(query_ids), len(reader), device=device)
    own = positions[world.rank :: world.size]
    for rows, batch in zip(own, stream(reader, own, collate), strict=True):
        video = model.encode_video(batch.frames.to(device), batch.frame_mask.to(device), batch.clips.to(device))
        scores[:, rows] = torch.cat([model.score(text, video).fused for text in texts]).float()
    return Ranking(
        world.sum(scores).cpu(),
        torch.cat(owners),
        tuple(query_ids),
        reader.index.video_ids,
        torch.tensor(ratios),
    )


def _ratio(query: Query, video: Video) -> float:
    if query.start is None or query.end is None or not video.duration:
        return math.nan
    return (query.end - query.start) / video.duration


def write_scores(path: Path, ranking: Ranking) -> None:
    """``scores`` [Q, V] float32, ``query_ids`` and ``video_ids`` as an .npz file, whole or not at all."""
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(
            file,
            scores=ranking.scores.numpy(),
            query_ids=np.array(ranking.query_ids),
            video_ids=np.array(ranking.video_ids),
        )
