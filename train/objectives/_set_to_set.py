"""RAL's confidence-aware alignment of the words of queries with the frames of videos (see ``ral.py``).

Plainly, [Q, V, W, F] products are held for the gradient: 600 MB at 307 queries, 128 videos, 30 words and 128 frames, and
some copies. A maximum passes its gradient to the chosen alone, so here products exist for a few videos at a time, what
is kept is which frame was chosen, and the gradient is summed from those.

Letters: ``N`` real words, of whatever queries.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.train.interface import TextCode, TrainingBranch, VideoCode
from prvr.train.layers import masked_softmax
from prvr.train.models._similarity import lengths
from prvr.train.objectives import _codes

_ELEMENTS = {"cpu": 2**20}  # products that exist at a time: what a cache holds of them
_ELEMENTS_ELSEWHERE = 2**26  # fewer launches


@dataclass(frozen=True)
class RalText(TextCode):
    """Q queries as the base codes them, and as CSA does.

    Args:
        own_words: [Q, W, D], of its own encoder, padded ones included.
        confidence: [Q, W], weight of each word's cosine, 0 for padded ones.
        dot_confidence: [Q, W], of its dot product.
    """

    own_words: Tensor
    confidence: Tensor
    dot_confidence: Tensor


class Csa(nn.Module):
    """Confidence-aware set-to-set alignment: equations 11 and 12.

    Args:
        project: [Q, W, Ew] to [Q, W, D].
        attend: of a sequence [Q, W, D] and its mask.
        predict: [.., D] to [.., 1], the confidence in a word; None for an equal one.
        released: the variant.
        places: of frames; a video of fewer has zeros besides, where ``released``.
    """

    def __init__(
        self, *, project: nn.Module, attend: nn.Module, predict: nn.Module | None, released: bool, places: int
    ) -> None:
        super().__init__()
        self.project = project
        self.attend = attend
        self.predict = predict
        self.released = released
        self.places = places

    def encode(self, text: TextCode, words: Tensor, position: nn.Module) -> RalText:
        """What is added to ``text``, of word features [Q, W', Ew] and the model's positions.

        The sequences are not cut to their length, as the released MSRA sees the codes of padded words too.
        """
        mask = text.mask
        own = self.attend(position(self.project(words[:, : mask.shape[1]] * mask[..., None])), mask)
        if self.predict is None:
            equal = mask.to(own.dtype) / mask.sum(1, keepdim=True).clamp_min(1)
            return RalText(text.words, mask, text.sentence, own, equal, equal)
        if not self.released:
            confidence = self.predict(own).squeeze(-1) * mask
            return RalText(text.words, mask, text.sentence, own, confidence, confidence)
        units = own / lengths(own)[..., None]
        confidence, dot_confidence = (masked_softmax(self.predict(t).squeeze(-1), mask) * mask for t in (units, own))
        return RalText(text.words, mask, text.sentence, own, confidence, dot_confidence)

    def compare(self, text: RalText, video: VideoCode) -> TrainingBranch:
        """[Q, V]."""
        frames, mask = _codes.frames(video), frame_mask(video)
        cosine, dot = nearest_frames(text.own_words[text.mask], frames, mask)
        if self.released:
            short = mask.sum(1) < self.places
            cosine, dot = (torch.where(short, s.clamp_min(0), s) for s in (cosine, dot))
        score = _of_queries(cosine, text.confidence, text.mask)
        return TrainingBranch(score, _of_queries(dot, text.dot_confidence, text.mask) if self.released else score)


def nearest_frames(words: Tensor, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and dot product, both [N, V], of each word and its nearest frame; the two choose theirs separately.

    Args:
        words: [N, D].
        frames: [V, F, D].
        mask: [V, F], at least one real frame a video.
    """
    frame_lengths = lengths(frames)
    by_cosine, dot, places = _Nearest.apply(words, frames, frame_lengths.detach(), mask)
    chosen_lengths = frame_lengths.gather(1, places).T
    return by_cosine.T / chosen_lengths / lengths(words)[:, None], dot.T


class _Nearest(torch.autograd.Function):
    """Dot products [V, N] with the frame that is nearest by cosine and by dot product, and which the first is [V, N]."""

    @staticmethod
    def forward(
        context: Any, words: Tensor, frames: Tensor, frame_lengths: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        videos, longest = mask.shape
        last = (mask * torch.arange(1, longest + 1, device=mask.device)).amax(1)
        elements = _ELEMENTS.get(words.device.type, _ELEMENTS_ELSEWHERE)
        portion = max(1, elements // max(1, len(words) * longest))
        # Written in place: small results that are kept between large ones that are not leave holes in the memory.
        by_cosine, dot = (words.new_empty(videos, len(words)) for _ in range(2))
        cosine_places, dot_places = (torch.empty_like(dot, dtype=torch.int64) for _ in range(2))
        for first in range(0, videos, portion):
            rows = slice(first, first + portion)
            cut = longest if portion >= videos else max(1, int(last[rows].max()))
            found = _chosen(words, frames[rows, :cut], frame_lengths[rows, :cut], mask[rows, :cut])
            for whole, part in zip((by_cosine, dot, cosine_places, dot_places), found, strict=True):
                whole[rows] = part
        context.save_for_backward(words, frames, cosine_places, dot_places)
        context.mark_non_differentiable(cosine_places)
        return by_cosine, dot, cosine_places

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        words, frames, *places = context.saved_tensors
        videos, longest, width = frames.shape
        starts = longest * torch.arange(videos, device=words.device)[:, None]
        frame = torch.cat([(starts + chosen).T for chosen in places], dim=1)  # [N, 2 V], row of the frames [V F, D]
        weight = torch.cat([gradient.T.to(words.dtype) for gradient in gradients[:2]], dim=1)
        of_words = functional.embedding_bag(frame, frames.flatten(0, 1), mode="sum", per_sample_weights=weight)
        order = frame.flatten().argsort()
        counts = torch.bincount(frame.flatten(), minlength=videos * longest)
        of_frames = functional.embedding_bag(
            order // frame.shape[1],  # the word
            words,
            counts.cumsum(0) - counts,
            mode="sum",
            per_sample_weights=weight.flatten()[order],
        )
        return of_words, of_frames.view(videos, longest, width), None, None


def _chosen(
    words: Tensor, frames: Tensor, frame_lengths: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of some videos, [v, N] each: the dot products with the nearest frames by cosine and by dot product, and their places."""
    products = (words @ frames.flatten(0, 1).T).view(len(words), *mask.shape)
    if not mask.all():
        products = products.masked_fill(~mask, -torch.inf)
    dot, dot_places = products.max(-1)
    cosine_places = (products / frame_lengths).argmax(-1, keepdim=True)
    by_cosine = products.gather(-1, cosine_places)
    return by_cosine.squeeze(-1).T, dot.T, cosine_places.squeeze(-1).T, dot_places.T


def _of_queries(words: Tensor, confidence: Tensor, mask: Tensor) -> Tensor:
    """[Q, V]: the similarities [N, V] of all real words, weighed and added up for each query."""
    query = mask.nonzero()[:, 0]
    weighed = words * confidence[mask][:, None]
    return weighed.new_zeros(len(mask), words.shape[1]).index_add(0, query, weighed)


def frame_mask(video: VideoCode) -> Tensor:
    """[V, F]; raises TypeError where a model with frames has none."""
    if video.frame_mask is None:
        raise TypeError("the model's video codes have frames, but no mask of them")
    return video.frame_mask
