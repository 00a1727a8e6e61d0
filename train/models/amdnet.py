"""AMDNet: Towards Efficient Partially Relevant Video Retrieval with Active Moment Discovering.

Peipei Song, Long Zhang, Long Lan, Weidong Chen, Dan Guo, Xun Yang, Meng Wang. IEEE Transactions on Multimedia 2025,
arXiv:2504.10920.

Equations: 1 (video vector), 2 (span anchors), 3 (a span as a mask of clips), 4 (attention whose head k sees the video
through span k), 5 (moment-enhanced clips), 6 (score). The losses, 7 to 10, are the objectives ``ranking``, without its
triplets, and ``diversity``: moment diversity (9) and moment relevance (10).

The text at hand has lost its formulas. The variant ``released`` is what the authors' code computes; ``paper`` is what
can be read, and differs in:
  - the video vector, the spans and their features are of the clips that a Transformer block has encoded; the released
    code takes them before that block, after the position embeddings;
  - what both attentions make of the clips: the released code averages it; in the paper the encoded clips enter the
    second one's residual sum, and its output is the end.
Both have the same parameters. The paper counts 0.89M, which is these at D = 256 and CLIP's 512, so its "feed-forward
network" is read as the block's output matrix, residual and LayerNorm; an inner width of 4 D would add half a million.
Its similarity, "the usual inner product", is read as that of unit vectors for ranking, as in the released code, and not
normalised in the loss.

Further quirks of the released code, in both variants: a mask multiplies attention logits, so what is outside of a span
is attended to with logit 0; the weight of the video vector's LayerNorm decays, as it is not called ``LayerNorm``.
Triangular and rectangular masks (Table VII) have no formula in the text and none in the code: see ``span_masks``.

Differs from the released code in: nothing that changes a score. That code does not import as it is; what it lacks is
used nowhere. A query is one sentence vector; of shards with words, it is the mean of their features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Scores, TextCode, TrainingBranch, VideoCode, VideoTextModel
from prvr.train.layers import (
    AttentionBlock,
    DecayedNorm,
    InputProjection,
    PositionEmbedding,
    gaussian_windows,
    initialise,
)
from prvr.train.models import _released
from prvr.train.models._options import check_ranges
from prvr.train.models._similarity import lengths, of_nearest

VARIANTS = ("released", "paper")
WINDOWS = ("gaussian", "triangular", "rectangular")


@dataclass(frozen=True)
class Options:
    """Settings of AMDNet; the defaults are the published ones for ActivityNet Captions.

    Args:
        variant: which reading of the paper.
        hidden: D (384 on TVR in the released code).
        spans: K, and the heads of the attentions; divides ``hidden``.
        window: shape of a span's mask: ``gaussian``, ``triangular`` or ``rectangular``.
        input_dropout: before the input projections and after the position embeddings.
        dropout: inside the attention blocks.
        max_words: words that are read of a query; those after them are not.
        max_frames: rows of the position table, of which C are used.
        clips: C, moments a video is pooled to.
        initializer_range: standard deviation of the initial matrices.

    Raises:
        ConfigurationError: a value out of its range.
    """

    variant: str = "released"
    hidden: int = 256
    spans: int = 4
    window: str = "gaussian"
    input_dropout: float = 0.2
    dropout: float = 0.2
    max_words: int = 30
    max_frames: int = 128
    clips: int = 32
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("variant of amdnet", self.variant, VARIANTS)
        if self.window not in WINDOWS:
            raise UnknownName("window of amdnet", self.window, WINDOWS)
        check_ranges(
            "amdnet",
            self,
            counts=("hidden", "spans", "max_words", "max_frames", "clips"),
            rates=("input_dropout", "dropout"),
            weights=("initializer_range",),
        )
        if self.hidden % self.spans:
            raise ConfigurationError(f"amdnet: hidden {self.hidden} does not divide into {self.spans} spans")
        if self.clips > self.max_frames:
            raise ConfigurationError(f"amdnet: clips {self.clips} must not exceed max_frames {self.max_frames}")


@dataclass(frozen=True)
class AmdNetVideo(VideoCode):
    """V encoded videos; ``frames`` and their mask are None.

    Args:
        anchors: [V, K, 2], center and width of each span, as parts of the video.
        spans: [V, K, C], each span as a mask of the clips.
        span_features: [V, K, D], the clips under each mask, added.
    """

    moments: Tensor
    global_: Tensor
    anchors: Tensor
    spans: Tensor
    span_features: Tensor

    @cached_property
    def moment_lengths(self) -> Tensor:
        """[V, C]."""
        return lengths(self.moments)


class AmdNet(VideoTextModel):
    """A video is its best clip, as seen through the spans that it proposes itself.

    Args:
        words: projection of a sentence vector.
        clips_in: projection of the clips.
        position: of the clips.
        plain: attention among the clips.
        masked: attention among its output, a head for each span.
        width: D.
        spans: K.
        clips: C.
        window: shape of the masks.
        max_words: words that are read of a query.
        spans_of_encoded: spans, their features and the video vector are of the first attention's output; else of its input.
        average: the clips are the mean of both attentions; else the second's output.
    """

    # Equation 7; each loss has its weight in it.
    default_objectives: Mapping[str, Mapping[str, Any]] = {
        "ranking": {"triplet": 0.0, "nce": {"clip": 0.02}},
        "diversity": {
            "query": 0.0,
            "spans": 1.0,
            "span_concentration": 0.15,
            "relevance": 25.0,
            "relevance_margin": 0.02,
        },
    }
    gives = frozenset({"moments", "global_", "spans"})
    gallery_batch = 100

    def __init__(
        self,
        *,
        words: InputProjection,
        clips_in: InputProjection,
        position: PositionEmbedding,
        plain: AttentionBlock,
        masked: AttentionBlock,
        width: int,
        spans: int,
        clips: int,
        window: str,
        max_words: int,
        spans_of_encoded: bool,
        average: bool,
    ) -> None:
        super().__init__()
        self.words = words
        self.clips_in = clips_in
        self.position = position
        self.plain = plain
        self.masked = masked
        self.summary_norm = DecayedNorm(width)
        self.summary = nn.Linear(width, width)
        self.anchors = nn.Linear(width, 2 * spans)
        self.spans = spans
        self.clips = clips
        self.window = window
        self.max_words = max_words
        self.spans_of_encoded = spans_of_encoded
        self.average = average

    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]; a word has its sentence's code, as no other is made."""
        words, mask = words[:, : self.max_words], mask[:, : self.max_words]
        real = mask[..., None]
        sentence = self.words((words * real).sum(1) / real.sum(1).clamp_min(1))
        return TextCode(sentence[:, None].expand(-1, mask.shape[1], -1), mask, sentence)

    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> AmdNetVideo:
        """``clips`` [V, C, E]; equations 1 to 5. The frames are not read.

        Raises:
            ValueError: another number of clips than the model's.
        """
        if clips.shape[1] != self.clips:
            raise ValueError(f"{clips.shape[1]} clips a video, but the model takes {self.clips}")
        projected = self.position(self.clips_in(clips))
        plain = self.plain(projected)
        source = plain if self.spans_of_encoded else projected
        summary = self.summary(self.summary_norm(source.mean(1)))
        anchors = torch.unflatten(self.anchors(summary).sigmoid(), -1, (self.spans, 2))
        spans = span_masks(anchors[..., 0], anchors[..., 1], self.clips, self.window)
        masked = self.masked(plain, None, spans[:, :, None])
        moments = (plain + masked) / 2 if self.average else masked
        return AmdNetVideo(moments, None, summary, None, anchors, spans, spans @ source)

    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """Branch ``clip`` (equation 6), [Q, V]."""
        return Scores({"clip": self._clip(text, video).cosine}, {"clip": 1.0})

    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """``clip``, [Q, V]; cosine and dot product choose their best clips separately."""
        return {"clip": self._clip(text, video)}

    @staticmethod
    def _clip(text: TextCode, video: VideoCode) -> TrainingBranch:
        if not isinstance(video, AmdNetVideo):
            raise TypeError(f"AMDNet scores what its encode_video returns, not a {type(video).__name__}")
        return of_nearest(text.sentence, video.moments, video.moment_lengths)


def build(options: Options, *, frame_width: int, word_width: int) -> AmdNet:
    """AMDNet for frame features of width ``frame_width`` and sentence features of width ``word_width``."""
    width, paper = options.hidden, options.variant == "paper"

    def project(inputs: int) -> InputProjection:
        return InputProjection(inputs=inputs, outputs=width, dropout=options.input_dropout)

    def attention() -> AttentionBlock:
        return AttentionBlock(width=width, heads=options.spans, dropout=options.dropout)

    model = AmdNet(
        words=project(word_width),
        clips_in=project(frame_width),
        position=PositionEmbedding(positions=options.max_frames, width=width, dropout=options.input_dropout),
        plain=attention(),
        masked=attention(),
        width=width,
        spans=options.spans,
        clips=options.clips,
        window=options.window,
        max_words=options.max_words,
        spans_of_encoded=paper,
        average=not paper,
    )
    initialise(model, options.initializer_range)
    return model


def span_masks(centers: Tensor, widths: Tensor, clips: int, window: str) -> Tensor:
    """Masks [V, K, C] of spans with ``centers`` and ``widths`` [V, K], each 1 at its highest clip.

    A Gaussian's standard deviation is a ninth of the width. A triangle's foot is the width, and never shorter than two
    steps from clip to clip, so that it holds one. A rectangle is where the triangle is not 0; its edges give no
    gradient to the anchors, so it takes the triangle's.
    """
    if window == "gaussian":
        return gaussian_windows(centers, widths, clips)
    places = torch.linspace(0, 1, clips, device=centers.device)
    foot = (widths / 2).clamp_min(1 / max(1, clips - 1))
    triangle = functional.relu(1 - (places - centers[..., None]).abs() / foot[..., None])
    triangle = triangle / triangle.amax(-1, keepdim=True)
    if window == "triangular":
        return triangle
    return triangle + ((triangle > 0).to(triangle.dtype) - triangle).detach()


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``state_dict`` of the authors' network (AMDNet's GMMFormer_Net) under our names, to be loaded strictly.

    Raises:
        ConfigurationError: a key that the network does not have, or one that is missing.
    """
    names = _released.projection("query", "words") | _released.projection("clip", "clips_in")
    names |= _released.position("clip", "position")
    names |= _released.attention_block("clip_encoder.attn0", "plain")
    names |= _released.attention_block("clip_encoder.attn1", "masked")
    names |= _released.parameters(
        {
            "clip_encoder.clip2video.layernorm": "summary_norm",
            "clip_encoder.clip2video.fc_out1": "summary",
            "clip_encoder.fc_gauss": "anchors",
        }
    )
    return _released.renamed(state, names, "network of AMDNet")
