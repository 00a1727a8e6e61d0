"""Building blocks that the models share.

Letters: ``N`` sequences of length ``L``, ``H`` heads, ``E`` input width, ``D`` hidden width.
Masks are bool, True = real.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_PLACES = 2048  # of sequences that are encoded together on a CPU: enough for its matrix products, and alike in length


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


def gaussian_windows(centers: Tensor, widths: Tensor, length: int) -> Tensor:
    """Gaussians over ``length`` places from 0 to 1, each 1 at its highest place: ``[..., length]``.

    A window's standard deviation is a ninth of its width, and a width is at least 0.01 (GMMFormer, Wang et al., 2024).
    The highest place is taken off before the exponential and not divided by after it, where a narrow window between two
    places would be 0 / 0.

    Args:
        centers: [...], in [0, 1].
        widths: broadcasts to ``centers``.
        length: of the sequence.
    """
    places = torch.linspace(0, 1, length, device=centers.device)
    squared = (places - centers[..., None]) ** 2
    deviation = widths[..., None].clamp_min(0.01) / 9
    return ((squared.amin(-1, keepdim=True) - squared) / (2 * deviation**2)).exp()


def place_windows(widths: Sequence[float | None], length: int, device: torch.device) -> list[Tensor | None]:
    """Of each width, [L, L]: row i is the window of place i; None for a width of None, which is no window.

    Its center is i / L among places that end at 1, and so lies a little before place i.
    """
    centers = torch.arange(length, device=device) / length
    return [
        None if width is None else gaussian_windows(centers, torch.full_like(centers, width), length)
        for width in widths
    ]


def encode_by_length(encode: Callable[[Tensor, Tensor | None], Tensor], features: Tensor, mask: Tensor) -> Tensor:
    """``encode`` of ``features`` [N, L, E] and ``mask`` [N, L], in portions of like length that are cut to their longest.

    For what treats sequences alone and attends to nothing behind the mask; its rows there come out as anything, or 0.
    On a GPU all goes at once: there, padding costs less than the launches that avoid it.

    Args:
        encode: of a portion of the features and its mask (None where all is real), to [n, l, D].
        features: [N, L, E].
        mask: [N, L].
    """
    length = features.shape[1]
    if features.device.type != "cpu" or not mask.numel():
        return encode(features, mask)
    lengths = (mask * torch.arange(1, length + 1)).amax(1)  # up to the last that is real
    order = lengths.argsort(descending=True, stable=True)
    encoded = []
    for rows in torch.split(order, max(1, _PLACES // length)):
        longest = max(1, int(lengths[rows[0]]))
        real = mask[rows, :longest]
        part = encode(features[rows, :longest], None if real.all() else real)
        encoded.append(functional.pad(part, (0, 0, 0, length - longest)))
    return torch.cat(encoded)[order.argsort()]


class Dropout(nn.Module):
    """As ``nn.Dropout``; on a CPU in less than half of the time, and keeping a byte an element for the gradient, not four.

    There, the rate is rounded to a 65,536th, and what is kept is scaled by the rate that results.

    Raises:
        ValueError: a rate outside of [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate of {rate} is not in [0, 1)")
        self.rate = rate

    def forward(self, features: Tensor) -> Tensor:
        """Any shape to the same shape."""
        if not self.training or not self.rate:
            return features
        if features.device.type != "cpu":
            return functional.dropout(features, self.rate)
        dropped: Tensor = _Dropped.apply(features, self.rate)
        return dropped


class _Dropped(torch.autograd.Function):
    """16 random bits an element, four of them from one random number: that number is what dropout spends its time on."""

    @staticmethod
    def forward(context: Any, features: Tensor, rate: float) -> Tensor:
        threshold = min(round(rate * 2**16), 2**16 - 1)
        numbers = torch.empty(-(-features.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = numbers.view(torch.int16)[: features.numel()].view(features.shape)  # from -2^15 to 2^15 - 1
        kept = bits >= threshold - 2**15
        context.save_for_backward(kept)
        context.scale = 2**16 / (2**16 - threshold)
        return _scaled(features, kept, context.scale)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = context.saved_tensors
        return _scaled(gradient, kept, context.scale), None


def _scaled(values: Tensor, kept: Tensor, scale: float) -> Tensor:
    return (values * kept.to(values.dtype)).mul_(scale)


class DecayedNorm(nn.Module):
    """LayerNorm whose weight decays, for models whose released code exempts no norm but those it calls ``LayerNorm``.

    It is no ``nn.LayerNorm``, and so ``decay_groups`` exempts its bias alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        """[..., D] to the same shape."""
        return functional.layer_norm(features, self.weight.shape, self.weight, self.bias)


class InputProjection(nn.Module):
    """Features to the hidden width: LayerNorm, Dropout, Linear, ReLU."""

    def __init__(self, *, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.dropout = Dropout(dropout)
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
        self.dropout = Dropout(dropout)

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
        self.dropout = Dropout(dropout)

    def forward(self, sequence: Tensor, mask: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] to the same shape.

        Args:
            sequence: [N, L, D].
            mask: [N, L], what may be attended to; None for everything.
            gain: broadcasts to [N, H, L, L] and multiplies the logits before the mask: a prior on who attends to whom
                (GMMFormer's Gaussian windows). It is why this is written out: no fused attention multiplies logits.
        """
        query, key, value = (self._split(project(sequence)) for project in (self.query, self.key, self.value))
        # The maps [N, H, L, L] are made again for the gradient: that is cheap beside the projections, and they are large.
        mixed: Tensor = checkpoint(self._mix, query, key, value, mask, gain, use_reentrant=False)
        return mixed.transpose(1, 2).flatten(2)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, gain: Tensor | None) -> Tensor:
        logits = (query / math.sqrt(query.shape[-1])) @ key.mT
        if gain is not None:
            logits = logits * gain
        attention: Tensor = self.dropout(masked_softmax(logits, None if mask is None else mask[:, None, None, :]))
        return attention @ value

    def _split(self, sequence: Tensor) -> Tensor:
        return torch.unflatten(sequence, -1, (self.heads, -1)).transpose(1, 2)  # [N, H, L, D / H]


class AttentionBlock(nn.Module):
    """Self-attention, Linear, Dropout, LayerNorm of the sum with the input: a Transformer layer minus feed-forward."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, heads=heads, dropout=dropout)
        self.output = nn.Linear(width, width)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, sequence: Tensor, mask: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        """[N, L, D] to the same shape; ``mask`` and ``gain`` as for SelfAttention."""
        mixed: Tensor = self.norm(sequence + self.dropout(self.output(self.attention(sequence, mask, gain))))
        return mixed


class TransformerLayer(nn.Module):
    """Attention, then Linear, ReLU, Linear, Dropout and LayerNorm of the sum with what went in (Vaswani et al., 2017).

    Args:
        attention: the layer's first half.
        width: D.
        inner: width between the two matrices.
        dropout: after the second.
    """

    def __init__(self, *, attention: AttentionBlock, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] with ``mask`` [N, L] to the same shape."""
        attended = self.attention(sequence, mask)
        encoded: Tensor = self.norm(attended + self.dropout(self.contract(functional.relu(self.expand(attended)))))
        return encoded


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
        if mask is None:
            return self._encode(features, None)
        return encode_by_length(self._encode, features, mask)

    def _encode(self, features: Tensor, mask: Tensor | None) -> Tensor:
        encoded: Tensor = self.attend(self.position(self.project(features)), mask)
        return encoded


class AttentionPooling(nn.Module):
    """A sequence to one vector: its mean, weighted by the softmax of one learned direction (equation 1 of MS-SL)."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.direction = nn.Linear(width, 1, bias=False)

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] with ``mask`` [N, L] to [N, D]."""
        weights = masked_softmax(self.direction(sequence).squeeze(-1), mask)
        return torch.einsum("nl,nld->nd", weights, sequence)
