"""Dual-branch: the base model that ICE, IRM and TCP were published on.

Junlong Ren, Gangjian Zhang, Yu Hu, Jian Shu, Hui Xiong, Hao Wang: Enhanced Partially Relevant Video Retrieval through
Inter- and Intra-Sample Analysis with Coherence Prediction. arXiv:2504.19637, section 3.2; its first version (v1,
"Exploiting Inter-Sample Correlation and Intra-Sample Redundancy …") writes out what the later one cites, and gives
the hyper-parameters. No code was published.

Equations: 1 (cosine of sentence and video vector, branch ``video``), 2 (of sentence and the most similar moment, branch
``moment``), 8 (their weighted sum); pooling by attention is equations 1 and 2 of v1. The losses, 3, are the objective
``ranking``.

What the papers leave open, and how it is read here (the variant ``paper``):
  - the inputs are those of MS-SL, which both versions follow: features pooled to at most 128 frames and to 32 moments,
    30 words; "FC layer" is its input projection (LayerNorm, Dropout, Linear, ReLU) and initialisation is its own too;
  - a standard Transformer encoder has positions, and TCP needs them: without, a shuffled sequence is encoded to the same
    vectors, shuffled. They are learned, as in MS-SL. One layer and 4 heads each, as there;
  - the inner width of the feed-forward layers. Table 2 counts 4.65M parameters with ActivityNet's features. Vaswani et
    al.'s 4 D would make 6.7M of that; 512 makes 4.65M to three digits, objectives included, if the three position
    tables have the 300 rows that MS-SL's configuration names, of which 190 can be used and stand here (4.38M);
  - the form of the losses of equation 3: the later version cites prior work for it, so it is that of MS-SL's code, and so
    is when negatives become hard. v1 writes them out (5 and 6), of cosines and a pair at a time: ``ranking.form = "ren"``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.interface import Scores, TextCode, TrainingBranch, VideoCode, VideoTextModel
from prvr.train.layers import (
    AttentionBlock,
    AttentionPooling,
    InputProjection,
    PositionEmbedding,
    SequenceEncoder,
    TransformerLayer,
    initialise,
)
from prvr.train.models._options import check_ranges
from prvr.train.models._similarity import lengths, of_nearest, of_whole

VARIANTS = ("paper",)


@dataclass(frozen=True)
class Options:
    """Settings of the dual-branch model; the defaults are the published ones.

    Args:
        variant: which reading of the paper.
        hidden: D.
        heads: of the self-attention; divides ``hidden``.
        feed_forward: inner width of the feed-forward layers.
        input_dropout: before the input projections and after the position embeddings.
        dropout: inside the Transformer layers.
        alpha: of the moment score in the fused score; the video score has the rest.
        max_words: words that are read of a query; those after them are not.
        max_frames: the longest frame sequence.
        clips: C, moments a video is pooled to.
        initializer_range: standard deviation of the initial matrices.

    Raises:
        ConfigurationError: a value out of its range.
    """

    variant: str = "paper"
    hidden: int = 384
    heads: int = 4
    feed_forward: int = 512
    input_dropout: float = 0.15
    dropout: float = 0.15
    alpha: float = 0.7
    max_words: int = 30
    max_frames: int = 128
    clips: int = 32
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("variant of dual-branch", self.variant, VARIANTS)
        check_ranges(
            "dual-branch",
            self,
            counts=("hidden", "heads", "feed_forward", "max_words", "max_frames", "clips"),
            rates=("input_dropout", "dropout"),
        )
        if not 0 <= self.alpha <= 1:
            raise ConfigurationError(f"dual-branch: alpha is {self.alpha}, but must be in [0, 1]")
        if not self.initializer_range >= 0:
            raise ConfigurationError(
                f"dual-branch: initializer_range is {self.initializer_range}, but must not be negative"
            )
        if self.hidden % self.heads:
            raise ConfigurationError(f"dual-branch: hidden {self.hidden} does not divide into {self.heads} heads")


@dataclass(frozen=True)
class DualBranchVideo(VideoCode):
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


class DualBranch(VideoTextModel):
    """A video is its frames, pooled by attention, and its best moment.

    Args:
        words, moments, frames: encoders of the three inputs.
        sentence_pooling: words to a sentence.
        video_pooling: frames to a video.
        clips: C.
        max_words: words that are read of a query.
        alpha: of the moment score in the fused score.
    """

    # Equation 3 (7 in v1).
    default_objectives: Mapping[str, Mapping[str, Any]] = {
        "ranking": {"margin": 0.2, "hard_from_epoch": 20, "hard_pool": 20, "nce": {"video": 0.02, "moment": 0.04}},
    }
    gives = frozenset({"moments", "frames", "global_"})

    def __init__(
        self,
        *,
        words: SequenceEncoder,
        moments: SequenceEncoder,
        frames: SequenceEncoder,
        sentence_pooling: AttentionPooling,
        video_pooling: AttentionPooling,
        clips: int,
        max_words: int,
        alpha: float,
    ) -> None:
        super().__init__()
        self.words = words
        self.moments = moments
        self.frames = frames
        self.sentence_pooling = sentence_pooling
        self.video_pooling = video_pooling
        self.clips = clips
        self.max_words = max_words
        self.weights = {"video": 1 - alpha, "moment": alpha}

    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]; section 3.2.1, and equation 1 of v1."""
        mask = mask[:, : self.max_words]
        encoded = self.words(words[:, : self.max_words], mask)
        return TextCode(encoded, mask, self.sentence_pooling(encoded, mask))

    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> DualBranchVideo:
        """``frames`` [V, F, E], ``mask`` [V, F], ``clips`` [V, C, E]; section 3.2.2, and equation 2 of v1.

        Raises:
            ValueError: another number of clips than the model's, or more frames than it has positions for.
        """
        if clips.shape[1] != self.clips:
            raise ValueError(f"{clips.shape[1]} clips a video, but the model takes {self.clips}")
        encoded = self.frames(frames, mask)
        return DualBranchVideo(self.moments(clips), encoded, self.video_pooling(encoded, mask), mask)

    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """Branches ``video``, equation 1 (3 in v1), and ``moment``, equation 2 (4 in v1), [Q, V], with the weights of
        equation 8 (14 in v1)."""
        branches = self._branches(text, video)
        return Scores({name: branch.cosine for name, branch in branches.items()}, self.weights)

    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """``video`` and ``moment``, [Q, V]; cosine and dot product choose their best moments separately."""
        return self._branches(text, video)

    @staticmethod
    def _branches(text: TextCode, video: VideoCode) -> dict[str, TrainingBranch]:
        if not isinstance(video, DualBranchVideo):
            raise TypeError(f"dual-branch scores what its encode_video returns, not a {type(video).__name__}")
        return {
            "video": of_whole(text.sentence, video.global_, video.global_lengths),
            "moment": of_nearest(text.sentence, video.moments, video.moment_lengths),
        }


def build(options: Options, *, frame_width: int, word_width: int) -> DualBranch:
    """The model for frame features of width ``frame_width`` and word features of width ``word_width``."""
    width = options.hidden

    def encoder(inputs: int, positions: int) -> SequenceEncoder:
        return SequenceEncoder(
            project=InputProjection(inputs=inputs, outputs=width, dropout=options.input_dropout),
            position=PositionEmbedding(positions=positions, width=width, dropout=options.input_dropout),
            attend=TransformerLayer(
                attention=AttentionBlock(width=width, heads=options.heads, dropout=options.dropout),
                width=width,
                inner=options.feed_forward,
                dropout=options.dropout,
            ),
        )

    model = DualBranch(
        words=encoder(word_width, options.max_words),
        moments=encoder(frame_width, options.clips),
        frames=encoder(frame_width, options.max_frames),
        sentence_pooling=AttentionPooling(width=width),
        video_pooling=AttentionPooling(width=width),
        clips=options.clips,
        max_words=options.max_words,
        alpha=options.alpha,
    )
    initialise(model, options.initializer_range)
    return model
