"""The losses of the plain models: of cosines or dot products, query by video. ``owner`` [Q] is each query's video, ascending."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

POOL = 20  # of the hardest, from which a hard negative is drawn


def by_video(owner: Tensor) -> dict[int, list[int]]:
    """The queries of each video that has any."""
    found: dict[int, list[int]] = {}
    for query, video in enumerate(owner.tolist()):
        found.setdefault(video, []).append(query)
    return found


def triplet(cosine: Tensor, owner: Tensor, margin: float, hard: bool) -> Tensor:
    """Of [Q, V]: each video's mean query against another's query, and each query's video against another."""
    queries = by_video(owner)
    video_to_text = torch.zeros(len(queries))
    for number, (video, own) in enumerate(queries.items()):
        positive = cosine[own, video].mean()
        masked = cosine[:, video].detach().clone()
        masked[own] = 999
        order = torch.sort(masked, descending=True).indices[len(own) :]
        rank = 0 if hard else int(torch.randint(0, len(order), (1,)))
        video_to_text[number] = (margin + cosine[order[rank], video] - positive).clamp(min=0)
    return video_to_text.mean() + text_to_video(cosine, owner, margin, hard)


def text_to_video(cosine: Tensor, positive: Tensor, margin: float, hard: bool) -> Tensor:
    """Of [N, M]: each row's positive column against another."""
    rows = torch.arange(len(cosine))
    masked = cosine.detach().clone()
    masked[rows, positive] = 999
    order = torch.sort(masked, descending=True, dim=1).indices
    last = min(1 + POOL, cosine.shape[1]) if hard else cosine.shape[1]
    negative = order[rows, torch.randint(1, last, (len(rows),))]
    return (margin + cosine[rows, negative] - cosine[rows, positive]).clamp(min=0).mean()


def nce(dot: Tensor, owner: Tensor) -> Tensor:
    """Of [Q, V], over videos and over queries; all queries of a video are positives, inside the logarithm."""
    positive = dot[torch.arange(len(dot)), owner]
    over_videos = torch.logsumexp(dot, dim=1) - positive
    queries = by_video(owner)
    over_queries = torch.zeros(dot.shape[1])
    for video, own in queries.items():
        over_queries[video] = torch.logsumexp(dot[:, video], dim=0) - torch.logsumexp(dot[own, video], dim=0)
    return over_videos.mean() + over_queries.mean()


def joint_nce(dot: Tensor) -> Tensor:
    """Of [Q, Q], whose diagonal is positive: one denominator of row and column."""
    return (torch.logsumexp(torch.cat([dot, dot.t()], dim=1), dim=1) - dot.diagonal()).mean()


def query_diversity(sentences: Tensor, owner: Tensor, margin: float, scale: float, focus: float | None) -> Tensor:
    """Queries of one video shall differ; a ``focus`` weighs pairs one by one (v2)."""
    unit = functional.normalize(sentences, dim=-1)
    total = torch.zeros(())
    for own in by_video(owner).values():
        cosine = unit[own] @ unit[own].t()
        others = 1 - torch.eye(len(own))
        grown = torch.exp(scale * (cosine + margin))
        if focus is None:
            total = total + torch.log(1 + (grown * others).sum(1)).sum()
        else:
            total = total + ((1 + cosine) ** focus * torch.log(1 + grown) * others).sum()
    return total / len(sentences)


def matching(sentences: Tensor, moments: Tensor, owner: Tensor) -> Tensor:
    """1 - cosine of the queries of a video and as many of its clips, as the Hungarian method matches them."""
    losses = []
    for video, own in by_video(owner).items():
        if len(own) > 1:
            similar = functional.normalize(sentences[own], dim=-1) @ functional.normalize(moments[video], dim=-1).t()
            rows, columns = linear_sum_assignment(1 - similar.detach().numpy())
            losses += [1 - similar[row, column] for row, column in zip(rows, columns, strict=True)]
    return torch.stack(losses).mean()
