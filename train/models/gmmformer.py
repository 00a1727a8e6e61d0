"""GMMFormer: Gaussian-Mixture-Model Based Transformer for Efficient Partially Relevant Video Retrieval.

Yuting Wang, Jinpeng Wang, Bin Chen, Ziyun Zeng, Shu-Tao Xia. AAAI 2024, doi:10.1609/aaai.v38i6.28389,
arXiv:2310.05195.

A frame attends to its neighbours: attention logits are multiplied by a Gaussian window around it, of three widths and
none, and the mean of the four attentions holds clips of many lengths without building one. Its losses are the
objectives ``ranking`` and ``diversity``.

The paper was not at hand; the variant ``released`` is what the authors' code computes, and these are its quirks:
  - a block's four attentions have no feed-forward layer, and two blocks stand in each of the branches;
  - a window multiplies the logits: what is outside of it has logit 0, and is attended to all the same;
  - the center of place i is i / L among places that end at 1, so that the peak is a little beside the diagonal;
  - L is the length that the batch is padded to, so that a video's frame score depends on the company it is encoded in
    (see ``padding_matters``). Evaluation encodes 100 videos at a time, in the order of the split, and so does ours;
  - the frame branch has the losses of the clip branch: one vector a video, and several positives.

Differs from the released code in: nothing that changes a score. Videos are encoded in portions of like length, under
the windows of the whole batch's length. A window so narrow that all of it is 0 at a short length is its highest place
here and NaN there. The query is encoded once a step, and not twice under different dropout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Scores, TextCode, TrainingBranch, VideoCode, VideoTextModel
from prvr.train.layers import (
    AttentionBlock,
    AttentionPooling,
    InputProjection,
    PositionEmbedding,
    SequenceEncoder,
    encode_by_length,
    initialise,
    place_windows,
)
from prvr.train.models import _released
from prvr.train.models._options import check_ranges
from prvr.train.models._similarity import lengths, of_nearest, of_whole

VARIANTS = ("released",)
WIDTHS = (None, 0.5, 1.0, 5.0)
"""Of the windows of a block's attentions, where the video's length is 1 and a standard deviation a ninth of the width."""
BLOCKS = 2


@dataclass(frozen=True)
class Options:
    """Settings of GMMFormer; the defaults are the published ones for ActivityNet Captions.

    Args:
        variant: which reading of the paper.
        hidden: D.
        heads: of the self-attention; divides ``hidden``.
        input_dropout: before the input projections and after the position embeddings.
        dropout: inside the attention blocks.
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
    input_dropout: float = 0.2
    dropout: float = 0.2
    clip_weight: float = 0.7
    frame_weight: float = 0.3
    max_words: int = 30
    max_frames: int = 128
    clips: int = 32
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("variant of gmmformer", self.variant, VARIANTS)
        check_ranges(
            "gmmformer",
            self,
            counts=("hidden", "heads", "max_words", "max_frames", "clips"),
            rates=("input_dropout", "dropout"),
            weights=("clip_weight", "frame_weight", "initializer_range"),
        )
        if self.hidden % self.heads:
            raise ConfigurationError(f"gmmformer: hidden {self.hidden} does not divide into {self.heads} heads")
        if self.clips > self.max_frames:
            raise ConfigurationError(f"gmmformer: clips {self.clips} must not exceed max_frames {self.max_frames}")


@dataclass(frozen=True)
class GmmFormerVideo(VideoCode):
    """V encoded videos; what of scoring needs no query is made when the first query is scored, and kept."""

    moments: Tensor
    frames: Tensor
    global_: Tensor
    frame_mask: Tensor

    @cached_property
    def moment_lengths(self) -> Tensor:
        """[V, C]."""
        return lengths(self.moments)

    @cached_property
    def global_lengths(self) -> Tensor:
        """[V]."""
        return lengths(self.global_)


class GaussianBlock(nn.Module):
    """The mean of attentions that are given a window each."""

    def __init__(self, attentions: Sequence[AttentionBlock]) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(attentions)

    def forward(self, sequence: Tensor, mask: Tensor | None, windows: Sequence[Tensor | None]) -> Tensor:
        """``sequence`` [N, L, D] with ``mask`` [N, L] to the same shape; ``windows`` are [L, L]."""
        first, *rest = (
            attention(sequence, mask, window) for attention, window in zip(self.attentions, windows, strict=True)
        )
        mixed: Tensor = sum(rest, start=first) / len(self.attentions)
        return mixed


class GaussianEncoder(nn.Module):
    """Projects the input, adds positions, and has Gaussian blocks one after the other.

    Args:
        project: [N, L, E] to [N, L, D].
        position: [N, L, D] to the same shape.
        blocks: each with as many attentions as there are widths.
        widths: of the windows, None for none.
    """

    def __init__(
        self,
        *,
        project: InputProjection,
        position: PositionEmbedding,
        blocks: Sequence[GaussianBlock],
        widths: Sequence[float | None],
    ) -> None:
        super().__init__()
        self.project = project
        self.position = position
        self.blocks = nn.ModuleList(blocks)
        self.widths = tuple(widths)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """``features`` [N, L, E] with ``mask`` [N, L] to [N, L, D]; rows that the mask leaves out mean nothing."""
        windows = place_windows(self.widths, features.shape[1], features.device)
        if mask is None:
            return self._encode(features, None, windows=windows)
        return encode_by_length(partial(self._encode, windows=windows), features, mask)

    def _encode(self, features: Tensor, mask: Tensor | None, *, windows: Sequence[Tensor | None]) -> Tensor:
        """The features may be cut, the ``windows`` are whole."""
        length = features.shape[1]
        cut = [None if window is None else window[:length, :length] for window in windows]
        sequence: Tensor = self.position(self.project(features))
        for block in self.blocks:
            sequence = block(sequence, mask, cut)
        return sequence


class GmmFormer(VideoTextModel):
    """A video is its best moment, and its frames pooled by attention.

    Args:
        words, moments, frames: encoders of the three inputs.
        sentence_pooling: words to a sentence.
        video_pooling: frames to a video.
        clips: C.
        max_words: words that are read of a query.
        weights: of the branches ``clip`` and ``frame`` in the fused score.
    """

    default_objectives: Mapping[str, Mapping[str, Any]] = {
        "ranking": {"margin": 0.2, "hard_from_epoch": 20, "hard_pool": 20, "nce": {"clip": 0.02, "frame": 0.04}},
        "diversity": {"query": 0.015, "query_form": "joint", "query_margin": 0.2, "query_scale": 32.0},
    }
    gives = frozenset({"moments", "frames", "global_"})
    gallery_batch = 100
    padding_matters = "the width of a window is a part of the length that the batch is padded to"

    def __init__(
        self,
        *,
        words: SequenceEncoder,
        moments: GaussianEncoder,
        frames: GaussianEncoder,
        sentence_pooling: AttentionPooling,
        video_pooling: AttentionPooling,
        clips: int,
        max_words: int,
        weights: Mapping[str, float],
    ) -> None:
        super().__init__()
        self.words = words
        self.moments = moments
        self.frames = frames
        self.sentence_pooling = sentence_pooling
        self.video_pooling = video_pooling
        self.clips = clips
        self.max_words = max_words
        self.weights = dict(weights)

    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]."""
        mask = mask[:, : self.max_words]
        encoded = self.words(words[:, : self.max_words], mask)
        return TextCode(encoded, mask, self.sentence_pooling(encoded, mask))

    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> GmmFormerVideo:
        """``frames`` [V, F, E], ``mask`` [V, F], ``clips`` [V, C, E].

        Raises:
            ValueError: another number of clips than the model's, or more frames than it has positions for.
        """
        if clips.shape[1] != self.clips:
            raise ValueError(f"{clips.shape[1]} clips a video, but the model takes {self.clips}")
        encoded = self.frames(frames, mask)
        return GmmFormerVideo(self.moments(clips), encoded, self.video_pooling(encoded, mask), mask)

    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """Branches ``clip`` and ``frame``, [Q, V]."""
        branches = self._branches(text, video)
        return Scores({name: branch.cosine for name, branch in branches.items()}, self.weights)

    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """``clip`` and ``frame``, [Q, V]; cosine and dot product choose their best moments separately."""
        return self._branches(text, video)

    @staticmethod
    def _branches(text: TextCode, video: VideoCode) -> dict[str, TrainingBranch]:
        if not isinstance(video, GmmFormerVideo):
            raise TypeError(f"GMMFormer scores what its encode_video returns, not a {type(video).__name__}")
        return {
            "clip": of_nearest(text.sentence, video.moments, video.moment_lengths),
            "frame": of_whole(text.sentence, video.global_, video.global_lengths),
        }


def build(options: Options, *, frame_width: int, word_width: int) -> GmmFormer:
    """GMMFormer for frame features of width ``frame_width`` and word features of width ``word_width``."""
    width = options.hidden

    def project(inputs: int) -> InputProjection:
        return InputProjection(inputs=inputs, outputs=width, dropout=options.input_dropout)

    def position(positions: int) -> PositionEmbedding:
        return PositionEmbedding(positions=positions, width=width, dropout=options.input_dropout)

    def attention() -> AttentionBlock:
        return AttentionBlock(width=width, heads=options.heads, dropout=options.dropout)

    def encoder() -> GaussianEncoder:
        blocks = [GaussianBlock([attention() for _ in WIDTHS]) for _ in range(BLOCKS)]
        # Of the clips' positions, C are used; the released table has max_frames.
        return GaussianEncoder(
            project=project(frame_width), position=position(options.max_frames), blocks=blocks, widths=WIDTHS
        )

    model = GmmFormer(
        words=SequenceEncoder(project=project(word_width), position=position(options.max_words), attend=attention()),
        moments=encoder(),
        frames=encoder(),
        sentence_pooling=AttentionPooling(width=width),
        video_pooling=AttentionPooling(width=width),
        clips=options.clips,
        max_words=options.max_words,
        weights={"clip": options.clip_weight, "frame": options.frame_weight},
    )
    initialise(model, options.initializer_range)
    return model


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``state_dict`` of the authors' GMMFormer_Net under our names, to be loaded strictly.

    Raises:
        ConfigurationError: a key that GMMFormer_Net does not have, or one that is missing.
    """
    names = {
        "modular_vector_mapping.weight": "sentence_pooling.direction.weight",
        "modular_vector_mapping_2.weight": "video_pooling.direction.weight",
    }
    for theirs, ours in {"query": "words", "clip": "moments", "frame": "frames"}.items():
        names |= _released.projection(theirs, f"{ours}.project") | _released.position(theirs, f"{ours}.position")
    names |= _released.attention_block("query_encoder", "words.attend")
    encoders = {"clip_encoder": "moments.blocks.0", "clip_encoder_2": "moments.blocks.1"}
    encoders |= {"frame_encoder_1": "frames.blocks.0", "frame_encoder_2": "frames.blocks.1"}
    for theirs, ours in encoders.items():
        for index in range(len(WIDTHS)):
            names |= _released.attention_block(f"{theirs}.attn{index}", f"{ours}.attentions.{index}")
    return _released.renamed(state, names, "GMMFormer_Net")
