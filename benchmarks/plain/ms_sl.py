"""What the released MS-SL computes, straightforwardly."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plain.layers import AttentionBlock, LinearLayer, Positions, encode, initialise, largest_product, most_similar, pool
from plain.losses import joint_nce, nce, text_to_video, triplet
from prvr.datasets.batch import Batch

CLIPS = 32
GALLERY_BATCH = 200
ANOMALY = True  # the released training loop runs inside torch.autograd.detect_anomaly
RANKED_BRANCHES = True  # metrics of clip and frame scores are computed beside those of their sum

type Gallery = tuple[Tensor, Tensor, Tensor]


class Net(nn.Module):
    """Clips are pooled to 528 proposals a video; a frame score attends to frames by the key clip."""

    def __init__(self, frame_width: int, word_width: int, hidden: int = 384, dropout: float = 0.1) -> None:
        super().__init__()
        self.query_input_proj = LinearLayer(word_width, hidden, dropout)
        self.query_pos_embed = Positions(30, hidden, dropout)
        self.query_encoder = AttentionBlock(hidden, 4, dropout)
        for name in ("clip", "frame"):
            self.add_module(f"{name}_input_proj", LinearLayer(frame_width, hidden, dropout))
            self.add_module(f"{name}_pos_embed", Positions(128, hidden, dropout))
            self.add_module(f"{name}_encoder", AttentionBlock(hidden, 4, dropout))
        self.pools = [nn.AvgPool1d(size, stride=1) for size in range(1, CLIPS + 1)]
        self.modular_vector_mapping = nn.Linear(hidden, 1, bias=False)
        self.mapping_linear = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        initialise(self)

    def losses(self, batch: Batch, hard: bool) -> dict[str, Tensor]:
        """Of a training step."""
        gallery = self.gallery(batch)
        proposals, frames, mask = gallery
        sentences, owner = self.sentences(batch.words, batch.word_mask.float()), batch.owner
        cosine, chosen = most_similar(sentences, proposals)
        dot = largest_product(sentences, proposals)
        # Frames and proposals are copied for every query, and then projected.
        rows = torch.arange(len(owner))
        key_clips = proposals[owner][rows, chosen[rows, owner]]
        expanded = frames[owner]
        key, value = (project(expanded) for project in self.mapping_linear)
        logits = torch.bmm(key, key_clips[..., None]) + (1 - mask[owner][..., None]) * -1e9
        seen = torch.bmm(functional.softmax(logits, dim=1).transpose(1, 2), value).squeeze(1)
        frame_cosine = functional.normalize(sentences, dim=-1) @ functional.normalize(seen, dim=-1).t()
        frame_dot = sentences @ seen.t()
        return {
            "clip_nce": 0.02 * nce(dot, owner),
            "clip_triplet": triplet(cosine, owner, 0.2, hard),
            "frame_nce": 0.04 * joint_nce(frame_dot),
            "frame_triplet": text_to_video(frame_cosine, rows, 0.2, hard)
            + text_to_video(frame_cosine.t(), rows, 0.2, hard),
        }

    def sentences(self, words: Tensor, mask: Tensor) -> Tensor:
        encoded = encode(words, mask, self.query_input_proj, self.query_pos_embed, self.query_encoder)
        return pool(encoded, mask, self.modular_vector_mapping)

    def gallery(self, batch: Batch) -> Gallery:
        """Proposals [V, 528, D], frames [V, F, D] and their mask."""
        mask = batch.frame_mask.float()
        frames = encode(batch.frames, mask, self.frame_input_proj, self.frame_pos_embed, self.frame_encoder)
        clips = encode(batch.clips, None, self.clip_input_proj, self.clip_pos_embed, self.clip_encoder)
        proposals = torch.cat([pool(clips.permute(0, 2, 1)) for pool in self.pools], dim=2).permute(0, 2, 1)
        return proposals, frames, mask

    @staticmethod
    def joined(galleries: list[Gallery]) -> Gallery:
        """Of several batches, padded to the longest."""
        longest = max(mask.shape[1] for _, _, mask in galleries)
        proposals = torch.cat([one for one, _, _ in galleries])
        frames = torch.cat([functional.pad(one, (0, 0, 0, longest - one.shape[1])) for _, one, _ in galleries])
        return (
            proposals,
            frames,
            torch.cat([functional.pad(one, (0, longest - one.shape[1])) for _, _, one in galleries]),
        )

    def scores(self, words: Tensor, mask: Tensor, gallery: Gallery) -> tuple[Tensor, Tensor]:
        """Clip and frame cosine [Q, V] of a batch of queries; keys and values of the gallery are projected for each."""
        proposals, frames, frame_mask = gallery
        sentences = self.sentences(words, mask)
        clip, chosen = most_similar(sentences, proposals)
        key, value = (project(frames) for project in self.mapping_linear)
        key_clips = proposals[torch.arange(len(proposals))[:, None], chosen.t()]  # [V, Q, D]
        logits = torch.bmm(key, key_clips.transpose(1, 2)) + (1 - frame_mask[..., None]) * -1e9
        seen = torch.bmm(functional.softmax(logits, dim=1).transpose(1, 2), value)  # [V, Q, D]
        queries = functional.normalize(sentences, dim=-1)
        return clip, (functional.normalize(seen, dim=-1) * queries[None]).sum(-1).t()
