"""One training step up to its loss: encode, compare, ask every objective."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prvr.datasets.batch import Batch
from prvr.train.interface import Objective, Step, VideoTextModel
from prvr.train.ranks import ALONE, World, evened, gather
from prvr.train.retriever import Retriever


class TrainingStep(nn.Module):
    """From a batch to its loss terms; a module, so that DistributedDataParallel can wrap it.

    Args:
        retriever: what encodes and compares.
        base: the model that objectives see.
        objectives: by name.
        world: of several processes, each gives its share of the batch, and all get the same terms.
    """

    def __init__(
        self,
        *,
        retriever: VideoTextModel,
        base: VideoTextModel,
        objectives: Mapping[str, Objective],
        world: World = ALONE,
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.base = base
        self.objectives = nn.ModuleDict(objectives)
        self.world = world

    def forward(self, batch: Batch, epoch: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Named scalars, whose sum is the loss.

        Args:
            batch: this process's share.
            epoch: from 0.
            rng: at the same place on every rank.
        """
        gathered = None
        if self.world.size > 1:
            batch, sizes = evened(batch, self.world)
        text = self.retriever.encode_text(batch.words, batch.word_mask)
        video = self.retriever.encode_video(batch.frames, batch.frame_mask, batch.clips)
        if self.world.size > 1:
            text, video, gathered = gather(batch, text, video, sizes, self.world)
        owner = batch.owner if gathered is None else gathered.owner
        scores = self.retriever.training_scores(text, video, owner)
        step = Step(batch, text, video, scores, epoch, rng, gathered)
        terms: dict[str, Tensor] = {}
        for objective in self.objectives.values():
            assert isinstance(objective, Objective)
            terms |= objective.terms(self.base, step)
        return terms


def parallel(step: TrainingStep) -> DistributedDataParallel:
    """The step of one of several processes. Where an objective replaces a branch, what the model had for it gets no gradient."""
    replaced = isinstance(step.retriever, Retriever)
    return DistributedDataParallel(step, broadcast_buffers=False, find_unused_parameters=replaced)
