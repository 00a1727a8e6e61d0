"""What the released GMMFormer computes, straightforwardly."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plain.layers import AttentionBlock, LinearLayer, Positions, encode, initialise, largest_product, most_similar, pool
from plain.losses import nce, query_diversity, triplet
from prvr.datasets.batch import Batch

WINDOWS = (None, 0.5, 1.0, 5.0)
GALLERY_BATCH = 100
ANOMALY = False
RANKED_BRANCHES = False

type Gallery = tuple[Tensor, Tensor]


class GaussianBlock(nn.Module):
    """The mean of four attentions under windows of their own."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        for number, window in enumerate(WINDOWS):
            self.add_module(f"attn{number}", AttentionBlock(width, 4, dropout, window))

    def forward(self, sequence: Tensor, mask: Tensor | None) -> Tensor:
        return torch.stack([attention(sequence, mask) for attention in self.children()], dim=-1).mean(dim=-1)


class Net(nn.Module):
    """Two Gaussian blocks in each branch; frames are pooled to one vector."""

    def __init__(self, frame_width: int, word_width: int, hidden: int = 384, dropout: float = 0.2) -> None:
        super().__init__()
        self.query_input_proj = LinearLayer(word_width, hidden, dropout)
        self.query_pos_embed = Positions(30, hidden, dropout)
        self.query_encoder = AttentionBlock(hidden, 4, dropout)
        for name in ("clip", "frame"):
            self.add_module(f"{name}_input_proj", LinearLayer(frame_width, hidden, dropout))
            self.add_module(f"{name}_pos_embed", Positions(128, hidden, dropout))
        self.clip_encoder, self.clip_encoder_2 = GaussianBlock(hidden, dropout), GaussianBlock(hidden, dropout)
        self.frame_encoder_1, self.frame_encoder_2 = GaussianBlock(hidden, dropout), GaussianBlock(hidden, dropout)
        self.modular_vector_mapping = nn.Linear(hidden, 1, bias=False)
        self.modular_vector_mapping_2 = nn.Linear(hidden, 1, bias=False)
        initialise(self)

    def losses(self, batch: Batch, hard: bool) -> dict[str, Tensor]:
        """Of a training step."""
        clips, videos = self.gallery(batch)
        owner, mask = batch.owner, batch.word_mask.float()
        sentences = self.sentences(batch.words, mask)
        clip_cosine, _ = most_similar(sentences, clips)
        frame_cosine = functional.normalize(sentences, dim=-1) @ functional.normalize(videos, dim=-1).t()
        again = self.sentences(batch.words, mask)  # encoded once more for the diversity of queries
        return {
            "clip_nce": 0.02 * nce(largest_product(sentences, clips), owner),
            "clip_triplet": triplet(clip_cosine, owner, 0.2, hard),
            "frame_nce": 0.04 * nce(sentences @ videos.t(), owner),
            "frame_triplet": triplet(frame_cosine, owner, 0.2, hard),
            "query_diversity": 0.015 * query_diversity(again, owner, 0.2, 32, None),
        }

    def sentences(self, words: Tensor, mask: Tensor) -> Tensor:
        encoded = encode(words, mask, self.query_input_proj, self.query_pos_embed, self.query_encoder)
        return pool(encoded, mask, self.modular_vector_mapping)

    def gallery(self, batch: Batch) -> Gallery:
        """Clips [V, 32, D] and videos [V, D]."""
        mask = batch.frame_mask.float()
        frames = encode(batch.frames, mask, self.frame_input_proj, self.frame_pos_embed, self.frame_encoder_1)
        videos = pool(self.frame_encoder_2(frames, mask), mask, self.modular_vector_mapping_2)
        clips = encode(batch.clips, None, self.clip_input_proj, self.clip_pos_embed, self.clip_encoder)
        return self.clip_encoder_2(clips, None), videos

    @staticmethod
    def joined(galleries: list[Gallery]) -> Gallery:
        """Of several batches."""
        return torch.cat([clips for clips, _ in galleries]), torch.cat([videos for _, videos in galleries])

    def scores(self, words: Tensor, mask: Tensor, gallery: Gallery) -> tuple[Tensor, Tensor]:
        """Clip and frame cosine [Q, V] of a batch of queries."""
        clips, videos = gallery
        sentences = self.sentences(words, mask)
        clip, _ = most_similar(sentences, clips)
        return clip, functional.normalize(sentences, dim=-1) @ functional.normalize(videos, dim=-1).t()
