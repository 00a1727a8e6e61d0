"""Recipes: how features are made, as data. ``<recipe>.toml`` names its backbone and weights; the settings of a stream
are those of the backbone's ``VideoOptions`` and ``TextOptions``. A backbone's default recipe has the backbone's name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prvr.extract.sampling import Sampling
from prvr.extract.weights import Published
from prvr.manifests import registry
from prvr.manifests.files import digest_of
from prvr.manifests.settings import build, merged

names = partial(registry.data_names, __name__)


@dataclass(frozen=True)
class Recipe:
    """One way to make features.

    Args:
        name: of the file.
        backbone: module of ``extract/backbones``.
        weights: name of the weights that are taken where none are given.
        published: names that stand for a download; any other name is a repository of the hub.
        sampling: which frames, for video.
        video, text: settings of the backbone for each stream; None where it has no such stream.
    """

    name: str
    backbone: str
    weights: str
    published: Mapping[str, Published] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    video: Mapping[str, Any] | None = None
    text: Mapping[str, Any] | None = None

    def digest(self, stream: str) -> str:
        """SHA-256 of all that decides a stream's numbers, the weights apart."""
        settings = self.text if stream == "text" else {"fps": self.sampling.fps, **(self.video or {})}
        return digest_of({"backbone": self.backbone, "stream": stream, "settings": settings})


def load(name: str, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with ``--set <recipe>.<key>=<value>`` changes; raises UnknownName, ConfigurationError."""
    import tomllib

    values = tomllib.loads(registry.data(__name__, name, kind="recipe"))
    return build(Recipe, merged(values, changes) | {"name": name}, where=name)
