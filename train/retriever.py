"""What is trained, ranked with and saved: a model together with the objectives that have a part in ranking."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from prvr.train.interface import Objective, Scores, TextCode, TrainingBranch, VideoCode, VideoTextModel


class Retriever(VideoTextModel):
    """A model, and what its ranking objectives add to its text codes and put in place of its branches.

    Args:
        model: the base.
        objectives: those that rank, by name.
    """

    def __init__(self, *, model: VideoTextModel, objectives: Mapping[str, Objective]) -> None:
        super().__init__()
        self.model = model
        self.objectives = nn.ModuleDict(objectives)
        self.default_objectives = model.default_objectives
        self.gives = model.gives
        self.gallery_batch = model.gallery_batch
        self.padding_matters = model.padding_matters

    def encode_text(self, words: Tensor, mask: Tensor) -> TextCode:
        """``words`` [Q, W, Ew], ``mask`` [Q, W]."""
        text = self.model.encode_text(words, mask)
        for objective in self._ranking():
            text = objective.encode_text(self.model, text, words, mask)
        return text

    def encode_video(self, frames: Tensor, mask: Tensor, clips: Tensor) -> VideoCode:
        """The model's own."""
        return self.model.encode_video(frames, mask, clips)

    def score(self, text: TextCode, video: VideoCode) -> Scores:
        """The model's branches, or those that take their places, in the model's weights."""
        scores = self.model.score(text, video)
        replaced = {name: branch.cosine for name, branch in self._replaced(text, video).items()}
        return replace(scores, branches={**scores.branches, **replaced})

    def training_scores(self, text: TextCode, video: VideoCode, owner: Tensor) -> Mapping[str, TrainingBranch]:
        """As ``score``."""
        return {**self.model.training_scores(text, video, owner), **self._replaced(text, video)}

    def _ranking(self) -> list[Objective]:
        return [each for each in self.objectives.values() if isinstance(each, Objective)]

    def _replaced(self, text: TextCode, video: VideoCode) -> dict[str, TrainingBranch]:
        branches: dict[str, TrainingBranch] = {}
        for objective in self._ranking():
            branches |= objective.replace_branch(self.model, text, video)
        return branches


def retriever(model: VideoTextModel, objectives: Mapping[str, Objective]) -> VideoTextModel:
    """The model itself where no objective ranks, so that its weights keep their names; else both together."""
    ranking = {name: each for name, each in objectives.items() if each.ranks}
    return Retriever(model=model, objectives=ranking) if ranking else model
