"""What a training step sees: videos with all their queries, padded."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """V videos and their Q queries. Masks are bool, True = real. Where V or Q is 0, widths are as ever and F or W is 0.

    Args:
        frames: [V, F, E] float, zero where padded.
        frame_mask: [V, F].
        clips: [V, C, E] float.
        words: [Q, W, Ew] float, zero where padded.
        word_mask: [Q, W].
        owner: [Q] int64, the row of each query's video.

    Raises:
        ValueError: two shapes that do not go together.
    """

    frames: Tensor
    frame_mask: Tensor
    clips: Tensor
    words: Tensor
    word_mask: Tensor
    owner: Tensor

    def __post_init__(self) -> None:
        videos, queries = self.frames.shape[0], self.words.shape[0]
        _same("frames and frame_mask", self.frames.shape[:2], self.frame_mask.shape)
        _same("frames and clips", (videos, self.frames.shape[2]), (self.clips.shape[0], self.clips.shape[2]))
        _same("words and word_mask", self.words.shape[:2], self.word_mask.shape)
        _same("words and owner", (queries,), self.owner.shape)
        if self.frame_mask.dtype != torch.bool or self.word_mask.dtype != torch.bool:
            raise ValueError(f"masks are bool, not {self.frame_mask.dtype} and {self.word_mask.dtype}")

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        tensors = (self.frames, self.frame_mask, self.clips, self.words, self.word_mask, self.owner)
        return sum(tensor.nbytes for tensor in tensors)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        return Batch(
            self.frames.to(device),
            self.frame_mask.to(device),
            self.clips.to(device),
            self.words.to(device),
            self.word_mask.to(device),
            self.owner.to(device),
        )


def _same(what: str, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    if tuple(one) != tuple(other):
        raise ValueError(f"{what} disagree: {tuple(one)} and {tuple(other)}")
