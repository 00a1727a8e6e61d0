"""Building blocks that the models share.

Letters: ``N`` sequences of length ``L``, ``H`` heads, ``E`` input width, ``D`` hidden width.
Masks are bool, True = real.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last dimension that gives nothing to what the mask, broadcast to ``logits``, leaves out.

    A row with nothing real comes out uniform and not NaN, so that an empty caption cannot poison a batch.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    return logits.softmax(-1)


def initialise(model: nn.Module, std: float) -> None:
    """BERT's initialisation, in place: matrices and embeddings N(0, std), biases 0, LayerNorm 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            nn.init.zeros_(module.bias)


class InputProjection(nn.Module):
    """Features to the hidden width: LayerNorm, Dropout, Linear, ReLU."""

    def __init__(self, *, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """[N, L, E] to [N, L, D]."""
        return functional.relu(self.linear(self.dropout(self.norm(features))))


class PositionEmbedding(nn.Module):
    """A learned vector for each position, added; then LayerNorm and Dropout."""

    def __init__(self, *, positions: int, width: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequence: Tensor) -> Tensor:
        """[N, L, D] to the same shape.

        Raises:
            ValueError: a sequence longer than the table.
        """
        length = sequence.shape[1]
        if length > self.table.num_embeddings:
            raise ValueError(f"a sequence of {length}, but the position table has {self.table.num_embeddings} rows")
        embedded: Tensor = self.dropout(self.norm(sequence + self.table.weight[:length]))
        return embedded


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017), without an output projection.

    Raises:
        ValueError: a width that the heads do not divide.
    """

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} does not divide into {heads} heads")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequence: Tensor, mask: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] to the same shape.

        Args:
            sequence: [N, L, D].
            mask: [N, L], what may be attended to; None for everything.
            gain: broadcasts to [N, H, L, L] and multiplies the logits before the mask: a prior on who attends to whom
                (GMMFormer's Gaussian windows). It is why this is written out: no fused attention multiplies logits.
        """
        query, key, value = (self._split(project(sequence)) for project in (self.query, self.key, self.value))
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        if gain is not None:
            logits = logits * gain
        attention = self.dropout(masked_softmax(logits, None if mask is None else mask[:, None, None, :]))
        mixed: Tensor = attention @ value
        return mixed.transpose(1, 2).flatten(2)

    def _split(self, sequence: Tensor) -> Tensor:
        return torch.unflatten(sequence, -1, (self.heads, -1)).transpose(1, 2)  # [N, H, L, D / H]


class AttentionBlock(nn.Module):
    """Self-attention, Linear, Dropout, LayerNorm of the sum with the input: a Transformer layer minus feed-forward."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, heads=heads, dropout=dropout)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, sequence: Tensor, mask: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        """[N, L, D] to the same shape; ``mask`` and ``gain`` as for SelfAttention."""
        mixed: Tensor = self.norm(sequence + self.dropout(self.output(self.attention(sequence, mask, gain))))
        return mixed


class SequenceEncoder(nn.Module):
    """How this family encodes any sequence: project the input, add positions, attend.

    Args:
        project: [N, L, E] to [N, L, D].
        position: [N, L, D] to the same shape.
        attend: of a sequence [N, L, D] and its mask.
    """

    def __init__(self, *, project: nn.Module, position: nn.Module, attend: nn.Module) -> None:
        super().__init__()
        self.project = project
        self.position = position
        self.attend = attend

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """``features`` [N, L, E] with ``mask`` [N, L] to [N, L, D]; rows that the mask leaves out mean nothing."""
        encoded: Tensor = self.attend(self.position(self.project(features)), mask)
        return encoded


class AttentionPooling(nn.Module):
    """A sequence to one vector: its mean, weighted by the softmax of one learned direction."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.direction = nn.Linear(width, 1, bias=False)

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] with ``mask`` [N, L] to [N, D]."""
        weights = masked_softmax(self.direction(sequence).squeeze(-1), mask)
        return torch.einsum("nl,nld->nd", weights, sequence)
