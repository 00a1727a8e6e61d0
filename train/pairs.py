"""Which objectives can be added to which models: told by building every pair, so that there is no table to keep.

A pair is refused by the objective's own ``build``, where the model's codes lack what its equations need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from prvr.manifests.errors import ConfigurationError
from prvr.manifests.settings import build
from prvr.train import models, objectives
from prvr.train.interface import VideoTextModel

_WIDTH = 8  # of frame and word features: no refusal is about it


@dataclass(frozen=True)
class Pair:
    """A model and an objective, by name.

    Args:
        model, objective: names.
        own: the model's paper trains it with this objective.
        refusal: why the two cannot be trained together; empty where they can.
    """

    model: str
    objective: str
    own: bool
    refusal: str

    @property
    def mark(self) -> str:
        """One letter for tables: see ``LEGEND``."""
        return "-" if self.refusal else "*" if self.own else "+"


LEGEND = "* in its paper's loss, + can be added, - refused"


def pairs() -> tuple[Pair, ...]:
    """Every model with every objective, by model."""
    return tuple(_pairs())


def refusal(model: VideoTextModel, objective: str) -> str:
    """Why ``objective``, with the settings that the model's paper has for it, is refused; empty where it is not.

    Raises:
        UnknownName: no objective of that name.
    """
    module = objectives.load(objective)
    options = build(module.Options, model.default_objectives.get(objective, {}), where=objective)
    try:
        with torch.random.fork_rng(devices=[]):
            module.build(options, model)
    except ConfigurationError as error:
        return str(error)
    return ""


def matrix(found: Sequence[Pair]) -> str:
    """``pairs`` as text: a row for each model, a column for each objective, and the reasons below."""
    rows = {pair.model: [each for each in found if each.model == pair.model] for pair in found}
    first = max(map(len, rows))
    columns = [pair.objective for pair in next(iter(rows.values()))]
    lines = [f"pairs:\n  {'':{first}}  {'  '.join(columns)}"]
    for model, row in rows.items():
        marks = "  ".join(f"{pair.mark:^{len(pair.objective)}}" for pair in row)
        lines.append(f"  {model:{first}}  {marks}".rstrip())
    reasons = [f"  {pair.model}+{pair.objective}: {pair.refusal}" for pair in found if pair.refusal]
    return "\n".join([*lines, f"  {LEGEND}", *reasons])


def _pairs() -> Iterator[Pair]:
    for name in models.names():
        module = models.load(name)
        with torch.random.fork_rng(devices=[]):
            model = module.build(module.Options(), frame_width=_WIDTH, word_width=_WIDTH)
        for objective in objectives.names():
            yield Pair(name, objective, objective in model.default_objectives, refusal(model, objective))
