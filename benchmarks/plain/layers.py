"""Building blocks that the plain models share. N sequences of length L, D hidden width; masks are float, 1 = real."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class LinearLayer(nn.Module):
    """LayerNorm, Dropout, Linear, ReLU."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(inputs)
        self.net = nn.Sequential(nn.Dropout(dropout), nn.Linear(inputs, width))

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.net(self.LayerNorm(features)))


class Positions(nn.Module):
    """A learned vector for each position, added; LayerNorm, Dropout."""

    def __init__(self, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(length, width)
        self.LayerNorm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        places = torch.arange(features.shape[1]).unsqueeze(0).repeat(len(features), 1)
        return self.dropout(self.LayerNorm(features + self.position_embeddings(places)))


class SelfAttention(nn.Module):
    """Multi-head attention without an output projection, its logits times a Gaussian window of a width, if there is one."""

    def __init__(self, width: int, heads: int, dropout: float, window: float | None = None) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, asking: Tensor, sequence: Tensor, mask: Tensor | None) -> Tensor:
        """``asking`` [N, L', D] of ``sequence`` [N, L, D], of which ``mask`` [N, L] is real."""
        query, key, value = (
            self.split(self.query(asking)),
            self.split(self.key(sequence)),
            self.split(self.value(sequence)),
        )
        logits = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        if self.window is not None:
            logits = logits * gaussian(logits.shape[-1], self.window)
        if mask is not None:
            logits = logits + (1 - mask[:, None, None]) * -10000.0
        attention = self.dropout(functional.softmax(logits, dim=-1))
        return torch.matmul(attention, value).permute(0, 2, 1, 3).contiguous().view(*asking.shape)

    def split(self, features: Tensor) -> Tensor:
        return features.view(*features.shape[:2], self.heads, -1).permute(0, 2, 1, 3)


def gaussian(length: int, width: float) -> Tensor:
    """[L, L]: row i is a Gaussian about i / L among places from 0 to 1, whose highest is 1."""
    centers = (torch.arange(length) / length)[:, None]
    weights = torch.exp(-((torch.linspace(0, 1, length)[None] - centers) ** 2) / (2 * (max(width, 0.01) / 9) ** 2))
    return weights / weights.max(dim=-1, keepdim=True).values


class Output(nn.Module):
    """Linear, Dropout, LayerNorm of the sum with what went in."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.LayerNorm = nn.LayerNorm(width)

    def forward(self, attended: Tensor, sequence: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(attended)) + sequence)


class AttentionBlock(nn.Module):
    """A Transformer layer without its feed-forward network: MS-SL's and GMMFormer's."""

    def __init__(self, width: int, heads: int, dropout: float, window: float | None = None) -> None:
        super().__init__()
        self.self = SelfAttention(width, heads, dropout, window)
        self.output = Output(width, dropout)

    def forward(self, sequence: Tensor, mask: Tensor | None) -> Tensor:
        return self.output(self.self(sequence, sequence, mask), sequence)


def encode(
    features: Tensor, mask: Tensor | None, project: LinearLayer, positions: Positions, encoder: nn.Module
) -> Tensor:
    """Project, add positions, encode: [N, L, D]."""
    return encoder(positions(project(features)), mask)


def pool(sequence: Tensor, mask: Tensor, direction: nn.Linear) -> Tensor:
    """[N, D]: the mean of a sequence, weighted by a softmax over what is real."""
    logits = direction(sequence) * mask[..., None] + (1 - mask[..., None]) * -1e10
    return torch.einsum("nlm,nld->nmd", functional.softmax(logits, dim=1), sequence).squeeze(1)


def initialise(model: nn.Module) -> None:
    """Matrices N(0, 0.02), biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.zero_()


def most_similar(sentences: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine [Q, V] with the most similar of each video's codes [V, L, D], and which it is."""
    unit, queries = functional.normalize(codes, dim=-1), functional.normalize(sentences, dim=-1)
    return torch.matmul(unit, queries.t()).permute(2, 1, 0).max(dim=1)


def largest_product(sentences: Tensor, codes: Tensor) -> Tensor:
    """Dot product [Q, V] with the code [V, L, D] of each video where it is largest."""
    return torch.matmul(codes, sentences.t()).permute(2, 1, 0).max(dim=1).values
