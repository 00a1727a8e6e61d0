"""GMMFormer v2: An Uncertainty-aware Framework for Partially Relevant Video Retrieval.

Yuting Wang, Jinpeng Wang, Bin Chen, Tao Dai, Ruisheng Luo, Shu-Tao Xia. arXiv:2405.13824.

GMMFormer's attentions under Gaussian windows, eight Transformer layers side by side; what each of them makes of a place
is weighed by a network that a learned token asks (temporal consolidation), and no longer averaged. Its losses are the
objectives ``ranking`` and ``diversity``, with optimal matching.

The paper was not at hand; the variant ``released`` is what the authors' code computes, and these are its quirks:
  - a layer's attention has no output projection, and its feed-forward network dropout inside;
  - a window multiplies the logits, its center is beside the diagonal: as in GMMFormer;
  - the network weighs by place, not by what is there: it gives a weight for each place of 128 frames or of 32 clips;
  - every video is padded to 128 frames, which the windows are of, and a padded frame's code is 0. It takes part in the
    maximum, so that the frame score of a video with fewer frames is never below 0;
  - the weights of these layers' LayerNorms decay, where all others' do not: the exemption is by the name ``LayerNorm``,
    which they do not have. Here they are ``DecayedNorm``, which the exemption of ``decay_groups`` does not know.

Differs from the released code in: nothing that changes a score. Nothing is padded: windows are cut, and the 0 of padded
frames is put into the maximum. Two biases that cancel in a softmax are not there: that of the token's keys, and that of
the matrix that gives each place its weights. The query is encoded once a step, not twice under different dropout.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Scores, TextCode, TrainingBranch, VideoCode, VideoTextModel
from prvr.train.layers import (
    AttentionPooling,
    DecayedNorm,
    Dropout,
    InputProjection,
    PositionEmbedding,
    SelfAttention,
    SequenceEncoder,
    encode_by_length,
    initialise,
    masked_softmax,
    place_windows,
)
from prvr.train.models import _released
from prvr.train.models._options import check_ranges
from prvr.train.models._similarity import lengths, of_nearest

VARIANTS = ("released",)
WIDTHS = (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0)
"""Of the windows, one a layer, where the video's length is 1 and a standard deviation a ninth of the width."""


@dataclass(frozen=True)
class Options:
    """Settings of GMMFormer v2; the defaults are the published ones for ActivityNet Captions.

    Args:
        variant: which reading of the paper.
        hidden: D.
        heads: of the attentions; divides ``hidden``.
        input_dropout: before the input projections and after the position embeddings.
        dropout: inside the Transformer layers.
        temperature: of the softmax over the layers; the smaller, the more one of them decides.
        clip_weight: of the clip score in the fused score.
        frame_weight: of the frame score.
        max_words: words that are read of a query; those after them are not.
        max_frames: the longest frame sequence.
        clips: C, moments a video is pooled to.
        initializer_range: standard deviation of the initial matrices.

    Raises:
        ConfigurationError: a value out of its range.
    """

    variant: str = "released"
    hidden: int = 384
    heads: int = 4
    input_dropout: float = 0.31
    dropout: float = 0.31
    temperature: float = 0.6
    clip_weight: float = 0.7
    frame_weight: float = 0.3
    max_words: int = 30
    max_frames: int = 128
    clips: int = 32
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("variant of gmmformer-v2", self.variant, VARIANTS)
        check_ranges(
            "gmmformer-v2",
            self,
            counts=("hidden", "heads", "max_words", "max_frames", "clips"),
            rates=("input_dropout", "dropout"),
            weights=("clip_weight", "frame_weight", "initializer_range"),
        )
        if not 0 < self.temperature < math.inf:
            raise ConfigurationError(f"gmmformer-v2: temperature is {self.temperature}, but must be finite and above 0")
        if self.hidden % self.heads:
            raise ConfigurationError(f"gmmformer-v2: hidden {self.hidden} does not divide into {self.heads} heads")
        if self.clips > self.max_frames:
            raise ConfigurationError(f"gmmformer-v2: clips {self.clips} must not exceed max_frames {self.max_frames}")


@dataclass(frozen=True)
class GmmFormerV2Video(VideoCode):
    """V encoded videos; ``global_`` is None. What of scoring needs no query is made when it is needed, and kept.

    Args:
        short: [V], the video has fewer frames than the model takes.
    """

    moments: Tensor
    frames: Tensor
    frame_mask: Tensor
    short: Tensor

    @cached_property
    def moment_lengths(self) -> Tensor:
        """[V, C]."""
        return lengths(self.moments)

    @cached_property
    def frame_lengths(self) -> Tensor:
        """[V, F]."""
        return lengths(self.frames)


class Refinement(nn.Module):
    """What follows on attention in a Transformer layer: LayerNorm of the sum, twice, the second of a feed-forward network.

    Args:
        width: D.
        inner: width between the network's two matrices.
        dropout: of what was attended, inside the network and after it.
    """

    def __init__(self, *, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attended_norm = DecayedNorm(width)
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.norm = DecayedNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, sequence: Tensor, attended: Tensor) -> Tensor:
        """Both [N, L, D], to the same shape."""
        sequence = self.attended_norm(sequence + self.dropout(attended))
        # Dropout scales, so it may stand before ReLU: one tensor of the inner width is kept for the gradient, not two.
        inner = functional.relu(self.dropout(self.expand(sequence)))
        refined: Tensor = self.norm(sequence + self.dropout(self.contract(inner)))
        return refined


class TransformerLayer(nn.Module):
    """Self-attention, without an output projection, and what follows on it."""

    def __init__(self, *, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, heads=heads, dropout=dropout)
        self.refine = Refinement(width=width, inner=inner, dropout=dropout)

    def forward(self, sequence: Tensor, mask: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        """[N, L, D] to the same shape; ``mask`` and ``gain`` as for SelfAttention."""
        refined: Tensor = self.refine(sequence, self.attention(sequence, mask, gain))
        return refined


class Consolidation(nn.Module):
    """How much each of several codings of a sequence counts at each place, as a learned token finds them.

    The token attends to each coding, and what it reads there becomes that coding's logit for every place.

    Args:
        width: D.
        heads: of the token's attention.
        places: the longest sequence.
        temperature: of the softmax over the codings.
        dropout: in the attention and the networks.
    """

    def __init__(self, *, width: int, heads: int, places: int, temperature: float, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.refine = Refinement(width=width, inner=width, dropout=dropout)
        self.hidden = nn.Linear(width, width)
        self.places = nn.Linear(width, places, bias=False)
        self.temperature = temperature
        self.dropout = Dropout(dropout)

    def forward(self, token: Tensor, codings: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        """``token`` [D] and B ``codings`` [N, L, D] with ``mask`` [N, L] to weights [N, L, B] that sum to 1."""
        probes = self._probes(token)
        read = [self._read(probes, coding, mask) for coding in codings]
        pooled = torch.stack([one for one, _ in read], dim=1)  # [N, B, H, D]
        total = torch.stack([one for _, one in read], dim=1)[..., None]  # [N, B, H, 1]
        weight, bias = (torch.unflatten(t, 0, (self.heads, -1)) for t in (self.value.weight, self.value.bias))
        attended = torch.einsum("nbhe,hde->nbhd", pooled, weight) + total * bias
        tokens = self.refine(token, attended.flatten(2))
        logits = self.places(functional.relu(self.dropout(self.hidden(tokens))))[..., : codings[0].shape[1]]
        weights: Tensor = (logits / self.temperature).softmax(1).mT
        return weights

    def _probes(self, token: Tensor) -> Tensor:
        """[H, D]: the token's question and the keys' matrix in one, as one question is asked of all places."""
        query, key = (torch.unflatten(t, 0, (self.heads, -1)) for t in (self.query(token), self.key.weight))
        return torch.einsum("hd,hde->he", query / math.sqrt(query.shape[-1]), key)

    def _read(self, probes: Tensor, coding: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each head the attended mean of a coding [N, H, D], and what its weights sum to under dropout [N, H]."""
        attention = masked_softmax((coding @ probes.T).mT, None if mask is None else mask[:, None])
        attention = self.dropout(attention)
        return attention @ coding, attention.sum(-1)


class MixtureEncoder(nn.Module):
    """Projects the input, adds positions, and mixes what layers of different windows make of it.

    Args:
        project: [N, L, E] to [N, L, D].
        position: [N, L, D] to the same shape.
        layers: as many as there are widths.
        consolidate: weighs them.
        widths: of the windows, None for none.
        places: the length that the windows are of, which no sequence exceeds.
    """

    def __init__(
        self,
        *,
        project: InputProjection,
        position: PositionEmbedding,
        layers: Sequence[TransformerLayer],
        consolidate: Consolidation,
        widths: Sequence[float | None],
        places: int,
    ) -> None:
        super().__init__()
        self.project = project
        self.position = position
        self.layers = nn.ModuleList(layers)
        self.consolidate = consolidate
        self.widths = tuple(widths)
        self.places = places

    def forward(self, features: Tensor, mask: Tensor | None, token: Tensor) -> Tensor:
        """``features`` [N, L, E] with ``mask`` [N, L] to [N, L, D]; rows that the mask leaves out mean nothing."""
        windows = place_windows(self.widths, self.places, features.device)
        if mask is None:
            return self._encode(features, None, windows=windows, token=token)
        return encode_by_length(partial(self._encode, windows=windows, token=token), features, mask)

    def _encode(
        self, features: Tensor, mask: Tensor | None, *, windows: Sequence[Tensor | None], token: Tensor
    ) -> Tensor:
        length = features.shape[1]
        sequence = self.position(self.project(features))
        codings = [
            layer(sequence, mask, None if window is None else window[:length, :length])
            for layer, window in zip(self.layers, windows, strict=True)
        ]
        weights = self.consolidate(token, codings, mask)
        mixed: Tensor = codings[0] * weights[..., :1]
        for index, coding in enumerate(codings[1:], 1):
            mixed = torch.addcmul(mixed, coding, weights[..., index : index + 1])
        return mixed


class GmmFormerV2(VideoTextModel):
    """A video is its best moment and its best frame.

    Args:
        words, moments, frames: encoders of the three inputs.
        pooling: words to a sentence.
        width: D.
        clips: C.
        max_words: words that are read of a query.
        max_frames: frames that a video has without being short.
        weights: of the branches ``clip`` and ``frame`` in the fused score.
    """

    default_objectives: Mapping[str, Mapping[str, Any]] = {
        "ranking": {"margin": 0.2, "hard_from_epoch": 20, "hard_pool": 20, "nce": {"clip": 0.02, "frame": 0.04}},
        "diversity": {
            "query": 0.003,
            "query_form": "pairwise",
            "query_margin": 0.2,
            "query_scale": 32.0,
            "query_focus": 1.0,
            "matching": 0.11,
        },
    }
    gives = frozenset({"moments", "frames"})
    gallery_batch = 100

    def __init__(
        self,
        *,
        words: SequenceEncoder,
        moments: MixtureEncoder,
        frames: MixtureEncoder,
        pooling: AttentionPooling,
        width: int,
        clips: int,
        max_words: int,
        max_frames: int,
        weights: Mapping[str, float],
    ) -> None:
        super().__init__()
        self.words = words
        self.moments = moments
        self.frames = frames
        self.pooling = pooling
        self.token = nn.Parameter(torch.randn(width))
        self.clips = clips
        self.max_words = max_words
        self.max_frames = max_frames
        self.weights = dict(weights)

    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]."""
        mask = mask[:, : self.max_words]
        encoded = self.words(words[:, : self.max_words], mask)
        return TextCode(encoded, mask, self.pooling(encoded, mask))

    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> GmmFormerV2Video:
        """``frames`` [V, F, E], ``mask`` [V, F], ``clips`` [V, C, E].

        Raises:
            ValueError: another number of clips than the model's, or more frames than it has positions for.
        """
        if clips.shape[1] != self.clips:
            raise ValueError(f"{clips.shape[1]} clips a video, but the model takes {self.clips}")
        encoded = self.frames(frames, mask, self.token).masked_fill(~mask[..., None], 0)
        short = mask.sum(1) < self.max_frames
        return GmmFormerV2Video(self.moments(clips, None, self.token), encoded, None, mask, short)

    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """Branches ``clip`` and ``frame``, [Q, V]."""
        branches = self._branches(text, video)
        return Scores({name: branch.cosine for name, branch in branches.items()}, self.weights)

    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """``clip`` and ``frame``, [Q, V]; cosine and dot product choose their best places separately."""
        return self._branches(text, video)

    @staticmethod
    def _branches(text: TextCode, video: VideoCode) -> dict[str, TrainingBranch]:
        if not isinstance(video, GmmFormerV2Video):
            raise TypeError(f"GMMFormer v2 scores what its encode_video returns, not a {type(video).__name__}")
        frame = of_nearest(text.sentence, video.frames, video.frame_lengths)
        cosine, dot = (torch.where(video.short, s.clamp_min(0), s) for s in (frame.cosine, frame.dot))
        clip = of_nearest(text.sentence, video.moments, video.moment_lengths)
        return {"clip": clip, "frame": TrainingBranch(cosine, dot)}


def build(options: Options, *, frame_width: int, word_width: int) -> GmmFormerV2:
    """GMMFormer v2 for frame features of width ``frame_width`` and word features of width ``word_width``."""
    width, heads, dropout = options.hidden, options.heads, options.dropout

    def project(inputs: int) -> InputProjection:
        return InputProjection(inputs=inputs, outputs=width, dropout=options.input_dropout)

    def position(positions: int) -> PositionEmbedding:
        return PositionEmbedding(positions=positions, width=width, dropout=options.input_dropout)

    def layer() -> TransformerLayer:
        return TransformerLayer(width=width, heads=heads, inner=4 * width, dropout=dropout)

    def encoder(places: int) -> MixtureEncoder:
        return MixtureEncoder(
            project=project(frame_width),
            position=position(options.max_frames),  # C positions of the clips' are used; the released table has these
            layers=[layer() for _ in WIDTHS],
            consolidate=Consolidation(
                width=width, heads=heads, places=places, temperature=options.temperature, dropout=dropout
            ),
            widths=WIDTHS,
            places=places,
        )

    model = GmmFormerV2(
        words=SequenceEncoder(project=project(word_width), position=position(options.max_words), attend=layer()),
        moments=encoder(options.clips),
        frames=encoder(options.max_frames),
        pooling=AttentionPooling(width=width),
        width=width,
        clips=options.clips,
        max_words=options.max_words,
        max_frames=options.max_frames,
        weights={"clip": options.clip_weight, "frame": options.frame_weight},
    )
    initialise(model, options.initializer_range)
    return model


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``state_dict`` of the authors' GMMFormerV2_Net under our names, to be loaded strictly.

    Biases that cancel in a softmax are left out: see above.

    Raises:
        ConfigurationError: a key that GMMFormerV2_Net does not have, or one that is missing.
    """
    names = {"modular_vector_mapping.weight": "pooling.direction.weight", "weight_token": "token"}
    for theirs, ours in {"query": "words", "clip": "moments", "frame": "frames"}.items():
        names |= _released.projection(theirs, f"{ours}.project") | _released.position(theirs, f"{ours}.position")
    layers = {"query_encoder": "words.attend"}
    for theirs, ours in {"clip_encoder": "moments", "frame_encoder_1": "frames"}.items():
        layers |= {f"{theirs}.attn{index}": f"{ours}.layers.{index}" for index in range(len(WIDTHS))}
        names |= _released.attention(f"{theirs}.ca", f"{ours}.consolidate")
        names |= _refinement(f"{theirs}.ca", f"{ours}.consolidate.refine")
        heads = {f"{theirs}.layer1": f"{ours}.consolidate.hidden", f"{theirs}.layer2": f"{ours}.consolidate.places"}
        names |= _released.parameters(heads)
    for theirs, ours in layers.items():
        names |= _released.attention(theirs, f"{ours}.attention") | _refinement(theirs, f"{ours}.refine")
    ours_state = _released.renamed(state, names, "GMMFormerV2_Net")
    ours_state["token"] = ours_state["token"].flatten()
    absent = ("consolidate.key.bias", "consolidate.places.bias")
    return {name: tensor for name, tensor in ours_state.items() if not name.endswith(absent)}


def _refinement(theirs: str, ours: str) -> dict[str, str]:
    modules = {"norm1": "attended_norm", "output.layer1": "expand", "output.layer2": "contract", "norm2": "norm"}
    return _released.parameters({f"{theirs}.{a}": f"{ours}.{b}" for a, b in modules.items()})
