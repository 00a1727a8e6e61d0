"""The numbers of the field's tables, of scores [Q, V] and each query's own video.

A rank is 1 + how many others score at least as high as the right one: ties count against it, so that a model which says the
same of every video is last and not first; so is one whose scores are no numbers. The released codes sort, and leave ties to
the sorting.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

CUTS = (1, 5, 10, 100)
GROUPS: Mapping[str, tuple[float, ...]] = {
    "three": (0.0, 0.2, 0.4, 1.0),
    "six": (0.0, 0.05, 0.1, 0.15, 0.2, 0.4, 1.0),
}
"""Bounds of the moment-to-video ratio by which papers group queries; a group has its upper bound, not its lower.

``three``: short, medium and long, as RAL (EMNLP Findings 2025) and AMDNet (TMM 2025) state them. ``six``: as many as in
figure 5 of MS-SL, whose bounds its text does not give; these divide the three further.
"""


def ranks(scores: Tensor, owner: Tensor) -> Tensor:
    """Text to video: rank of each query's own video, from 1, [Q]. ``scores`` [Q, V], ``owner`` [Q]."""
    own = scores.gather(1, owner[:, None])
    return (~(scores < own)).sum(1)  # and not >=, which NaN would win


def video_ranks(scores: Tensor, owner: Tensor) -> Tensor:
    """Video to text: rank of the best of each video's own queries among the queries of other videos, from 1, [V'], for the V'
    videos that have queries. As in MS-SL's released evaluation, the best of several right answers counts. Its arguments are
    those of ``ranks``."""
    owned = owner[:, None] == torch.arange(scores.shape[1], device=scores.device)
    best = scores.masked_fill(~owned, -torch.inf).max(0).values
    others = (~(scores < best) & ~owned).sum(0)
    return (1 + others)[owned.any(0)]


def recalls(ranks: Tensor) -> dict[str, float]:
    """R@k in percent for the field's k, and SumR. ``ranks`` [N] from 1."""
    found = {f"R@{cut}": (ranks <= cut).double().mean().item() * 100 for cut in CUTS}
    return found | {"SumR": sum(found.values())}


def median_rank(ranks: Tensor) -> float:
    """The median of ``ranks`` [N]; the mean of the middle two of an even number, as NumPy's."""
    return float(ranks.double().quantile(0.5))


def grouped(ranks: Tensor, ratios: Tensor, bounds: tuple[float, ...]) -> dict[str, dict[str, float]]:
    """Recalls of each group of queries, by its bounds, with the number of its ``queries``; empty groups are left out.

    Args:
        ranks: [Q].
        ratios: [Q], moment length over video length; NaN where either is unknown: in no group.
        bounds: rising.
    """
    found = {}
    for lower, upper in pairwise(bounds):
        # Durations are rounded by annotators: a moment as long as its video may be a hair longer.
        inside = (ratios > lower) & ((ratios <= upper) | (upper == bounds[-1]))
        if inside.any():
            found[f"({lower:g}, {upper:g}]"] = {**recalls(ranks[inside]), "queries": int(inside.sum())}
    return found


def chance(videos: int) -> dict[str, float]:
    """What a random order of so many videos reaches in the mean."""
    found = {f"R@{cut}": min(cut, videos) / videos * 100 for cut in CUTS}
    return found | {"SumR": sum(found.values())}


def at_chance(ranks: Tensor, videos: int) -> bool:
    """Whether ``ranks`` [Q] among so many ``videos`` are as high as those of random scores, or higher.

    Of those, rank / videos is 1/2 in the mean, and the mean of Q strays from it by 1 / sqrt(12 Q); better than chance is what
    lies three times as far below. Of one video, or of fewer than 100 queries, it says False: too few to tell.
    """
    if videos == 1 or len(ranks) < 100:
        return False
    return ((ranks.double() - 0.5) / videos).mean().item() >= 0.5 - 3 / math.sqrt(12 * len(ranks))


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Rows of metrics as the papers print them."""
    names = [*(f"R@{cut}" for cut in CUTS), "SumR"]
    width = max(len(name) for name in rows)
    lines = [" " * width + "".join(f"{name:>8}" for name in names)]
    lines += [f"{name:{width}}" + "".join(f"{row[metric]:8.1f}" for metric in names) for name, row in rows.items()]
    return "\n".join(lines)
