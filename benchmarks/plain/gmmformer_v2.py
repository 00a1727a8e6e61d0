"""What the released GMMFormer v2 computes, straightforwardly."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plain.layers import LinearLayer, Positions, SelfAttention, encode, initialise, largest_product, most_similar, pool
from plain.losses import matching, nce, query_diversity, triplet
from prvr.datasets.batch import Batch

WINDOWS = (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0)
FRAMES, CLIPS = 128, 32
TEMPERATURE = 0.6
GALLERY_BATCH = 100
ANOMALY = False
RANKED_BRANCHES = False

type Gallery = tuple[Tensor, Tensor]


class FeedForward(nn.Module):
    """Linear, ReLU, Dropout, Linear."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer2(self.dropout(torch.relu(self.layer1(features))))


class TransformerLayer(nn.Module):
    """Attention, and a feed-forward network, each with Dropout and LayerNorm of the sum."""

    def __init__(self, width: int, inner: int, dropout: float, window: float | None = None) -> None:
        super().__init__()
        self.self = SelfAttention(width, 4, dropout, window)
        self.output = FeedForward(width, inner, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, asking: Tensor, mask: Tensor | None, sequence: Tensor | None = None) -> Tensor:
        """``asking`` [N, L', D] attends to ``sequence`` [N, L, D], or to itself."""
        attended = self.self(asking, asking if sequence is None else sequence, mask)
        asking = self.norm1(asking + self.dropout1(attended))
        return self.norm2(asking + self.dropout2(self.output(asking)))


class MixtureBlock(nn.Module):
    """Eight layers side by side, weighed at each place by what a token reads of them."""

    def __init__(self, width: int, places: int, dropout: float) -> None:
        super().__init__()
        for number, window in enumerate(WINDOWS):
            self.add_module(f"attn{number}", TransformerLayer(width, 4 * width, dropout, window))
        self.ca = TransformerLayer(width, width, dropout)
        self.layer1, self.layer2 = nn.Linear(width, width), nn.Linear(width, places)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequence: Tensor, mask: Tensor | None, token: Tensor) -> Tensor:
        codings = [getattr(self, f"attn{number}")(sequence, mask) for number in range(len(WINDOWS))]
        tokens = token.repeat(len(sequence), 1, 1)
        read = torch.cat([self.ca(tokens, mask, coding) for coding in codings], dim=1)  # [N, 8, D]
        logits = self.layer2(self.dropout(torch.relu(self.layer1(read))))  # [N, 8, L]
        weights = functional.softmax(logits / TEMPERATURE, dim=1)
        return (weights[..., None] * torch.stack(codings, dim=1)).sum(dim=1)


class Net(nn.Module):
    """One mixture block in each branch; every video is padded to 128 frames."""

    def __init__(self, frame_width: int, word_width: int, hidden: int = 384, dropout: float = 0.31) -> None:
        super().__init__()
        self.query_input_proj = LinearLayer(word_width, hidden, dropout)
        self.query_pos_embed = Positions(30, hidden, dropout)
        self.query_encoder = TransformerLayer(hidden, 4 * hidden, dropout)
        for name, width in (("clip", frame_width), ("frame", frame_width)):
            self.add_module(f"{name}_input_proj", LinearLayer(width, hidden, dropout))
            self.add_module(f"{name}_pos_embed", Positions(128, hidden, dropout))
        self.clip_encoder = MixtureBlock(hidden, CLIPS, dropout)
        self.frame_encoder_1 = MixtureBlock(hidden, FRAMES, dropout)
        self.modular_vector_mapping = nn.Linear(hidden, 1, bias=False)
        self.weight_token = nn.Parameter(torch.randn(1, 1, hidden))
        initialise(self)

    def losses(self, batch: Batch, hard: bool) -> dict[str, Tensor]:
        """Of a training step."""
        clips, frames = self.gallery(batch)
        owner, mask = batch.owner, batch.word_mask.float()
        sentences = self.sentences(batch.words, mask)
        clip_cosine, frame_cosine = most_similar(sentences, clips)[0], most_similar(sentences, frames)[0]
        again = self.sentences(batch.words, mask)  # encoded once more for the diversity of queries, and the matching
        return {
            "clip_nce": 0.02 * nce(largest_product(sentences, clips), owner),
            "clip_triplet": triplet(clip_cosine, owner, 0.2, hard),
            "frame_nce": 0.04 * nce(largest_product(sentences, frames), owner),
            "frame_triplet": triplet(frame_cosine, owner, 0.2, hard),
            "query_diversity": 0.003 * query_diversity(again, owner, 0.2, 32, 1),
            "matching": 0.11 * matching(again, clips, owner),
        }

    def sentences(self, words: Tensor, mask: Tensor) -> Tensor:
        encoded = encode(words, mask, self.query_input_proj, self.query_pos_embed, self.query_encoder)
        return pool(encoded, mask, self.modular_vector_mapping)

    def gallery(self, batch: Batch) -> Gallery:
        """Clips [V, 32, D] and frames [V, 128, D], 0 where padded."""
        missing = FRAMES - batch.frames.shape[1]
        frames = functional.pad(batch.frames, (0, 0, 0, missing))
        mask = functional.pad(batch.frame_mask.float(), (0, missing))
        embedded = self.frame_pos_embed(self.frame_input_proj(frames))
        encoded = self.frame_encoder_1(embedded, mask, self.weight_token) * mask[..., None]
        clips = self.clip_pos_embed(self.clip_input_proj(batch.clips))
        return self.clip_encoder(clips, None, self.weight_token), encoded

    @staticmethod
    def joined(galleries: list[Gallery]) -> Gallery:
        """Of several batches."""
        return torch.cat([clips for clips, _ in galleries]), torch.cat([frames for _, frames in galleries])

    def scores(self, words: Tensor, mask: Tensor, gallery: Gallery) -> tuple[Tensor, Tensor]:
        """Clip and frame cosine [Q, V] of a batch of queries."""
        clips, frames = gallery
        sentences = self.sentences(words, mask)
        return most_similar(sentences, clips)[0], most_similar(sentences, frames)[0]
