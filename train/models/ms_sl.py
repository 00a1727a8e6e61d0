"""MS-SL: Partially Relevant Video Retrieval.

Jianfeng Dong, Xianke Chen, Minsong Zhang, Xun Yang, Shujie Chen, Xirong Li, Xun Wang. ACM Multimedia 2022,
doi:10.1145/3503161.3547976.

Equations: 1 (sentence), 2 and 3 (moments, and the proposals pooled from them), 4 (frames), 5 (clip score), 6 and 7 (key
clip guided attention, frame score), 11 (their weighted sum). The losses, 8 to 10, are the objective ``ranking``.

The variant ``released`` is what the authors' code computes. It differs from the paper, and so from ``paper``, in:
  - a Transformer layer is attention, residual and LayerNorm, without the feed-forward layer;
  - in training, a frame score of two different queries uses the key clip of the query that owns the video, where
    equation 7 takes that of the query it is compared with; evaluation follows equation 7;
  - the losses, whose form ``default_objectives`` sets: see ``ranking``;
  - 30 words on every data set (64 on ActivityNet Captions in A.3.2), and an end after 11 epochs without progress, not
    10. These two and the weights are settings: see the presets ``ms-sl.*.paper``. The paper's Adam is BertAdam there too.

What the paper leaves open, and how ``paper`` reads it:
  - the inner width of the feed-forward layer: 4 D, as in Vaswani et al. Table 5 counts 1.22 GFLOP for a pair of TVR,
    where this makes 1.18, and 0.73 without a feed-forward layer;
  - FC is the released input projection (LayerNorm, Dropout, Linear, ReLU), PE a learned table with LayerNorm and Dropout;
  - K, Z and the weights of attention in equation 6 are as released: no bias, one head, no scale.
Table 7 has other encoders in place of the Transformers: see ``encoder`` and ``_sequences.py``.

Differs from the released code in: nothing that changes a score. Mean pooling is linear, so a query is compared with the
C moments, and its similarity to each of the P = C(C + 1)/2 proposals is pooled from those C numbers: no proposal is
built. The frame vector of equation 6 depends on the query through the key clip alone, so for ranking all P of them are
made once for a video and looked up.
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
    AttentionPooling,
    InputProjection,
    PositionEmbedding,
    SequenceEncoder,
    TransformerLayer,
    initialise,
    masked_softmax,
)
from prvr.train.models._options import check_ranges
from prvr.train.models._sequences import ConvolutionBlock, RecurrentLayer

_NCE = {"clip": 0.02, "frame": 0.04}
_OBJECTIVES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "released": {"ranking": {"margin": 0.2, "hard_from_epoch": 20, "hard_pool": 20, "nce": _NCE}},
    "paper": {"ranking": {"form": "paper", "margin": 0.2, "hard_from_epoch": 20, "nce": _NCE}},
}
VARIANTS = tuple(_OBJECTIVES)
ENCODERS = ("transformer", "cnn", "gru", "lstm")
_KERNEL = 5  # of the 1D-CNN
_ELEMENTS = 2**23  # of the largest tensors that scoring makes at a time: 32 MiB in float32
_VIDEOS = 32  # whose attention maps [P, F] exist at a time


@dataclass(frozen=True)
class Options:
    """Settings of MS-SL; the defaults are the published ones.

    Args:
        variant: the authors' code, or the paper's equations.
        encoder: what encodes all three sequences: ``transformer``, or as in Table 7 ``cnn``, ``gru`` or ``lstm``.
        hidden: D.
        heads: of the self-attention; divides ``hidden``.
        feed_forward: inner width of the feed-forward layers, which the variant ``paper`` alone has.
        input_dropout: before the input projections and after the position embeddings.
        dropout: inside the encoders; a recurrent one has none.
        clip_weight: of the clip score in the fused score.
        frame_weight: of the frame score (0.5 and 0.5 on Charades-STA).
        max_words: words that are read of a query; those after them are not.
        max_frames: the longest frame sequence.
        clips: C, moments a video is pooled to.
        initializer_range: standard deviation of the initial matrices.

    Raises:
        ConfigurationError: a value out of its range.
    """

    variant: str = "released"
    encoder: str = "transformer"
    hidden: int = 384
    heads: int = 4
    feed_forward: int = 1536
    input_dropout: float = 0.1
    dropout: float = 0.1
    clip_weight: float = 0.7
    frame_weight: float = 0.3
    max_words: int = 30
    max_frames: int = 128
    clips: int = 32
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("variant of ms-sl", self.variant, VARIANTS)
        if self.encoder not in ENCODERS:
            raise UnknownName("encoder of ms-sl", self.encoder, ENCODERS)
        check_ranges(
            "ms-sl",
            self,
            counts=("hidden", "heads", "feed_forward", "max_words", "max_frames", "clips"),
            rates=("input_dropout", "dropout"),
            weights=("clip_weight", "frame_weight", "initializer_range"),
        )
        if self.hidden % self.heads:
            raise ConfigurationError(f"ms-sl: hidden {self.hidden} does not divide into {self.heads} heads")
        if self.encoder in ("gru", "lstm") and self.hidden % 2:
            raise ConfigurationError(
                f"ms-sl: hidden {self.hidden} does not divide into two directions of {self.encoder}"
            )
        if self.clips > self.max_frames:
            raise ConfigurationError(f"ms-sl: clips {self.clips} must not exceed max_frames {self.max_frames}")


@dataclass(frozen=True)
class MsSlVideo(VideoCode):
    """V encoded videos, with all of scoring that needs no query. ``global_`` is None.

    Args:
        windows: [P, C], proposals as weights of moments.
        inverse_norms: [V, P], one over the length of each proposal.
        affinity: [V, C, F], attention logit of each frame under each moment; a proposal's is the mean of its moments'.
        values: [V, F, D], Z of equation 6.
    """

    shared = frozenset({"windows"})

    moments: Tensor
    frames: Tensor
    frame_mask: Tensor
    windows: Tensor
    inverse_norms: Tensor
    affinity: Tensor
    values: Tensor

    @cached_property
    def aggregated(self) -> Tensor:
        """[V, P, D], the frame vector r of equation 6 were each proposal the key clip, of unit length.

        Made when the first query is scored, and kept: 0.8 MB a video at P = 528 and D = 384.
        """
        parts = zip(*(torch.split(t, _VIDEOS) for t in (self.affinity, self.frame_mask, self.values)), strict=True)
        return torch.cat(
            [
                functional.normalize(masked_softmax(self.windows @ affinity, mask[:, None]) @ values, dim=-1)
                for affinity, mask, values in parts
            ]
        )


class MsSl(VideoTextModel):
    """Multi-scale similarity learning: a video is its best clip, and its frames as that clip sees them.

    Args:
        words, moments, frames: encoders of the three inputs.
        pooling: words to a sentence.
        width: D.
        clips: C.
        max_words: words that are read of a query.
        weights: of the branches ``clip`` and ``frame`` in the fused score.
        paired: in training, a frame score uses the key clip of the query that owns the video, as released; otherwise
            that of the query it is compared with.
        default_objectives: what it is trained with.
    """

    gives = frozenset({"moments", "frames"})
    windows: Tensor

    def __init__(
        self,
        *,
        words: SequenceEncoder,
        moments: SequenceEncoder,
        frames: SequenceEncoder,
        pooling: AttentionPooling,
        width: int,
        clips: int,
        max_words: int,
        weights: Mapping[str, float],
        paired: bool,
        default_objectives: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__()
        self.default_objectives = default_objectives
        self.paired = paired
        self.words = words
        self.moments = moments
        self.frames = frames
        self.pooling = pooling
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.max_words = max_words
        self.weights = dict(weights)
        self.register_buffer("windows", proposal_windows(clips), persistent=False)

    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]; equation 1."""
        mask = mask[:, : self.max_words]
        encoded = self.words(words[:, : self.max_words], mask)
        return TextCode(encoded, mask, self.pooling(encoded, mask))

    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> MsSlVideo:
        """``frames`` [V, F, E], ``mask`` [V, F], ``clips`` [V, C, E]; equations 2 to 4.

        Raises:
            ValueError: another number of clips than the model's, or more frames than it has positions for.
        """
        if clips.shape[1] != self.windows.shape[1]:
            raise ValueError(f"{clips.shape[1]} clips a video, but the model takes {self.windows.shape[1]}")
        moments = self.moments(clips)
        encoded = self.frames(frames, mask)
        # |Σ w_i m_i|² = Σ w_i w_j (m_i · m_j): a proposal's length from the C × C products of the moments.
        squared = ((self.windows @ (moments @ moments.mT)) * self.windows).sum(-1)
        return MsSlVideo(
            moments=moments,
            frames=encoded,
            global_=None,
            frame_mask=mask,
            windows=self.windows,
            inverse_norms=squared.clamp_min(1e-24).rsqrt(),
            affinity=moments @ self.key(encoded).mT,
            values=self.value(encoded),
        )

    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """Branches ``clip`` (equation 5) and ``frame`` (equation 7), [Q, V], with the weights of equation 11; queries go in
        portions to bound memory."""
        video = _own(video)
        proposals, width = video.aggregated.shape[1:]
        portion = max(1, _ELEMENTS // (len(video.moments) * (2 * proposals + width)))
        queries = functional.normalize(text.sentence, dim=-1)
        parts = [self._cosines(part, video) for part in torch.split(queries, portion)]
        clip, frame = (torch.cat(branch) for branch in zip(*parts, strict=True))
        return Scores({"clip": clip, "frame": frame}, self.weights)

    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """``clip`` and ``frame``, [Q, V]; but of the released variant, ``frame`` [Q, Q], whose column j is query j's own
        video under query j's key clip.

        The two similarities of the clip branch choose their best proposals separately; the key clip is the cosine's.
        """
        video = _own(video)
        queries = functional.normalize(text.sentence, dim=-1)
        products = torch.einsum("qd,vcd->qvc", text.sentence, video.moments)
        cosines = torch.einsum("qd,vcd->qvc", queries, video.moments)
        key_clips = _best(cosines, video.windows, video.inverse_norms)
        dot = _pooled(products, video.windows, _best(products, video.windows, None))
        clip = TrainingBranch(_clip_cosine(cosines, video, key_clips), dot)
        if self.paired:
            return {"clip": clip, "frame": _frame_of_owners(text, queries, video, owner, key_clips)}
        return {"clip": clip, "frame": _frame(text, video, key_clips)}

    @staticmethod
    def _cosines(queries: Tensor, video: MsSlVideo) -> tuple[Tensor, Tensor]:
        """Clip and frame cosine [Q, V] of unit ``queries`` [Q, D]."""
        similarities = torch.einsum("qd,vcd->qvc", queries, video.moments)
        key_clips = _best(similarities, video.windows, video.inverse_norms)
        rows = torch.arange(len(video.moments), device=queries.device)
        frame = torch.einsum("qd,qvd->qv", queries, video.aggregated[rows, key_clips])
        return _clip_cosine(similarities, video, key_clips), frame


def build(options: Options, *, frame_width: int, word_width: int) -> MsSl:
    """MS-SL for frame features of width ``frame_width`` and word features of width ``word_width``."""

    def encoder(inputs: int, positions: int) -> SequenceEncoder:
        return SequenceEncoder(
            project=InputProjection(inputs=inputs, outputs=options.hidden, dropout=options.input_dropout),
            position=PositionEmbedding(positions=positions, width=options.hidden, dropout=options.input_dropout),
            attend=_attend(options),
        )

    model = MsSl(
        words=encoder(word_width, options.max_words),
        moments=encoder(frame_width, options.max_frames),  # C positions are used; the released table has max_frames
        frames=encoder(frame_width, options.max_frames),
        pooling=AttentionPooling(width=options.hidden),
        width=options.hidden,
        clips=options.clips,
        max_words=options.max_words,
        weights={"clip": options.clip_weight, "frame": options.frame_weight},
        paired=options.variant == "released",
        default_objectives=_OBJECTIVES[options.variant],
    )
    initialise(model, options.initializer_range)
    return model


def _attend(options: Options) -> nn.Module:
    """What is called a Transformer in equations 2 and 4, or stands in its place."""
    width, dropout = options.hidden, options.dropout
    match options.encoder:
        case "cnn":
            return ConvolutionBlock(width=width, kernel=_KERNEL, dropout=dropout)
        case "gru" | "lstm" as kind:
            return RecurrentLayer(kind=kind, width=width)
    attention = AttentionBlock(width=width, heads=options.heads, dropout=dropout)
    if options.variant == "released":
        return attention
    return TransformerLayer(attention=attention, width=width, inner=options.feed_forward, dropout=dropout)


def proposal_windows(clips: int) -> Tensor:
    """[P, C], equation 3: each run of consecutive moments as a row of weights that averages it; sizes 1 to C, in order."""
    moments = torch.eye(clips)
    return torch.cat([moments.unfold(0, size, 1).mean(-1) for size in range(1, clips + 1)])


def from_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``state_dict`` of the authors' MS_SL_Net under our names, to be loaded strictly.

    Raises:
        ConfigurationError: a key that MS_SL_Net does not have, or one that is missing.
    """
    names = _released_names()
    if state.keys() != names.keys():
        odd = ", ".join(sorted(state.keys() ^ names.keys())[:4])
        raise ConfigurationError(f"not a state_dict of the released MS_SL_Net: missing or unexpected are {odd}, …")
    return {names[key]: tensor for key, tensor in state.items()}


def _released_names() -> dict[str, str]:
    """Parameter names of the released code to ours."""
    both = {"modular_vector_mapping.weight": "pooling.direction.weight"}
    both |= {"mapping_linear.0.weight": "key.weight", "mapping_linear.1.weight": "value.weight"}
    for theirs, ours in {"query": "words", "clip": "moments", "frame": "frames"}.items():
        both[f"{theirs}_pos_embed.position_embeddings.weight"] = f"{ours}.position.table.weight"
        modules = {
            f"{theirs}_input_proj.LayerNorm": f"{ours}.project.norm",
            f"{theirs}_input_proj.net.1": f"{ours}.project.linear",
            f"{theirs}_pos_embed.LayerNorm": f"{ours}.position.norm",
            f"{theirs}_encoder.output.dense": f"{ours}.attend.output",
            f"{theirs}_encoder.output.LayerNorm": f"{ours}.attend.norm",
        }
        modules |= {f"{theirs}_encoder.self.{n}": f"{ours}.attend.attention.{n}" for n in ("query", "key", "value")}
        both |= {f"{a}.{kind}": f"{b}.{kind}" for a, b in modules.items() for kind in ("weight", "bias")}
    return both


def _own(video: VideoCode) -> MsSlVideo:
    if not isinstance(video, MsSlVideo):
        raise TypeError(f"MS-SL scores what its encode_video returns, not a {type(video).__name__}")
    return video


def _frame_of_owners(
    text: TextCode, queries: Tensor, video: MsSlVideo, owner: Tensor, key_clips: Tensor
) -> TrainingBranch:
    """[Q, Q]: each query, of unit length in ``queries``, against the frames of query j's video under j's key clip."""
    own = key_clips.gather(1, owner[:, None]).squeeze(1)
    logits = torch.einsum("qc,qcf->qf", video.windows[own], video.affinity[owner])
    attention = masked_softmax(logits, video.frame_mask[owner])
    aggregated = torch.einsum("qf,qfd->qd", attention, video.values[owner])
    cosine = queries @ functional.normalize(aggregated, dim=-1).T
    return TrainingBranch(cosine, text.sentence @ aggregated.T, paired=True)


def _frame(text: TextCode, video: MsSlVideo, key_clips: Tensor) -> TrainingBranch:
    """[Q, V]: each query against the frames of each video under its own key clip there (equation 7).

    Of r = Σ a_f z_f its products are needed, and not r itself, [Q, V, D]: r · q = Σ a_f (z_f · q), and
    |r|² = Σ a_f a_g (z_f · z_g).
    """
    logits = torch.einsum("qvc,vcf->qvf", video.windows[key_clips], video.affinity)
    attention = masked_softmax(logits, video.frame_mask)
    dot = (attention * torch.einsum("qd,vfd->qvf", text.sentence, video.values)).sum(-1)
    among = video.values @ video.values.mT
    squared = (attention * torch.einsum("qvf,vfg->qvg", attention, among)).sum(-1)
    lengths = torch.linalg.vector_norm(text.sentence, dim=-1, keepdim=True).clamp_min(1e-12)
    return TrainingBranch(dot * squared.clamp_min(1e-24).rsqrt() / lengths, dot)


def _best(similarities: Tensor, windows: Tensor, scale: Tensor | None) -> Tensor:
    """Index [Q, V] of the proposal most similar, after ``scale`` [V, P]; ``similarities`` [Q, V, C] are the moments'.

    A maximum passes its gradient to the chosen alone, so choosing needs no graph: no [Q, V, P] outlives this function.
    """
    with torch.no_grad():
        portion = max(1, _ELEMENTS // (similarities.shape[1] * 2 * len(windows)))
        pooled = (part @ windows.T for part in torch.split(similarities, portion))
        return torch.cat([(part if scale is None else part * scale).argmax(-1) for part in pooled])


def _pooled(similarities: Tensor, windows: Tensor, proposals: Tensor) -> Tensor:
    """Similarity [Q, V] to the ``proposals`` [Q, V], from those to the moments [Q, V, C]."""
    return (similarities * windows[proposals]).sum(-1)


def _clip_cosine(similarities: Tensor, video: MsSlVideo, proposals: Tensor) -> Tensor:
    """Cosine [Q, V] with the ``proposals`` [Q, V], from unit queries' similarities to the moments [Q, V, C]."""
    inverse_norms = video.inverse_norms.expand(len(proposals), -1, -1).gather(2, proposals[..., None]).squeeze(2)
    return _pooled(similarities, video.windows, proposals) * inverse_norms
