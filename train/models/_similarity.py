"""How queries are compared with what a video is coded to: cosine and dot product from one product.

Letters: ``Q`` queries, ``V`` videos, ``L`` codes a video, ``D`` hidden width.
"""

import torch
from torch import Tensor

from prvr.train.interface import TrainingBranch


def lengths(vectors: Tensor) -> Tensor:
    """Of the last dimension; a vector of zeros has a length that can be divided by."""
    found: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return found.clamp_min(1e-12)


def of_nearest(sentences: Tensor, codes: Tensor, code_lengths: Tensor) -> TrainingBranch:
    """[Q, V]: each query against the most similar code of each video (of clips, equation 1 of RAL); cosine and dot
    product choose theirs separately.

    Args:
        sentences: [Q, D].
        codes: [V, L, D].
        code_lengths: [V, L], by which the cosine divides.
    """
    dot = torch.einsum("qd,vld->qvl", sentences, codes)
    cosine = (dot / code_lengths).max(-1).values / lengths(sentences)[:, None]
    return TrainingBranch(cosine, dot.max(-1).values)


def of_whole(sentences: Tensor, videos: Tensor, video_lengths: Tensor) -> TrainingBranch:
    """[Q, V]: each query [Q, D] against the one vector of each video [V, D], of lengths [V]."""
    dot = sentences @ videos.T
    return TrainingBranch(dot / video_lengths / lengths(sentences)[:, None], dot)
