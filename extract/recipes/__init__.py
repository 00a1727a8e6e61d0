"""Recipes: how features are made, as data. ``<recipe>.toml`` names a backbone and its weights, which pictures are looked at
(``sampling``, ``window``), the backbone's own settings for a stream (``video``, ``text``), and what becomes of the rows
(``pool``, ``normalise``); or it joins other recipes. A backbone's default recipe has the backbone's name."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from prvr.extract.pooling import Pool
from prvr.extract.sampling import Sampling
from prvr.extract.weights import Published
from prvr.extract.windows import Window
from prvr.manifests import registry
from prvr.manifests.settings import build, merged

names = partial(registry.data_names, __name__)


@dataclass(frozen=True)
class Channel:
    """One backbone's way to rows.

    Args:
        name: of the recipe file.
        backbone: module of ``extract/backbones``.
        weights: name of the weights that are taken where none are given; empty where there are none that a name can fetch.
        published: names that stand for a download, besides those of the backbone's default recipe; any other name is a
            repository of the hub.
        sampling: which pictures, for video.
        window: how many pictures make a row; None where each does.
        video, text: settings of the backbone for each stream; None where it has no such stream.
        pool: what makes clips of rows; None where rows are stored as they are.
        batch_size: rows computed together where ``--batch-size`` is not given, on a CPU; a GPU takes eight times as many.
    """

    name: str
    backbone: str
    weights: str
    published: Mapping[str, Published] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    window: Window | None = None
    video: Mapping[str, Any] | None = None
    text: Mapping[str, Any] | None = None
    pool: Pool | None = None
    batch_size: int = 8

    def settings(self, stream: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides a stream's numbers, the weights apart. ``options``: of the backbone, defaults filled in."""
        steps = {"sampling": self.sampling, "window": self.window, "pool": self.pool} if stream == "video" else {}
        set_ = {name: asdict(step) for name, step in steps.items() if step is not None}
        return {"backbone": self.backbone, **set_, stream: dict(options)}


@dataclass(frozen=True)
class Recipe:
    """One way to make features: of one channel, or of several whose rows are joined in this order. ``about``: in a line."""

    name: str
    about: str
    channels: tuple[Channel, ...]
    normalise: Literal["none", "l2"] = "none"

    @property
    def backbone(self) -> str:
        """Names of the backbones, joined by plus signs."""
        return "+".join(channel.backbone for channel in self.channels)

    def serves(self, stream: str) -> bool:
        """Whether it makes features of ``video``, or of ``text`` and ``subtitles``."""
        if stream != "video":
            return len(self.channels) == 1 and self.channels[0].text is not None
        return all(channel.video is not None for channel in self.channels)

    def settings(self, stream: str, options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All that decides a stream's numbers, the weights apart. ``options``: of each channel's backbone."""
        channels = [channel.settings(stream, own) for channel, own in zip(self.channels, options, strict=True)]
        return {"channels": channels, "normalise": self.normalise}


@dataclass(frozen=True)
class _Joined:
    """The file of a recipe that joins others."""

    about: str
    join: tuple[str, ...]
    normalise: Literal["none", "l2"] = "none"


def load(name: str, settings: Mapping[str, Any], *, over: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe, with ``--set <recipe>.<key>=<value>`` changes (``settings``) and changes for all its channels (``over``).

    Raises:
        UnknownName: no such recipe, or no such setting.
        ConfigurationError: a setting that is refused.
    """
    values = merged(raw(name), settings.get(name, {}))
    if "join" in values:
        joined = build(_Joined, values, where=name)
        parts = [load(part, settings, over=over) for part in joined.join]
        channels = tuple(channel for part in parts for channel in part.channels)
        return Recipe(name, joined.about, channels, joined.normalise)
    whole: dict[str, Any] = {key: values.pop(key) for key in ("about", "normalise") if key in values}
    published = raw(values["backbone"]).get("published", {}) if values.get("backbone") in names() else {}
    values = merged({"published": published}, merged({**values, "name": name}, over or {}))
    channel = build(Channel, values, where=name)
    return build(Recipe, {"name": name, "channels": (channel,), **whole}, where=name)


def text(name: str) -> str:
    """A recipe's file, whole: its comments say what is established and what is not; raises UnknownName."""
    return registry.data(__name__, name, kind="recipe")


def raw(name: str) -> dict[str, Any]:
    """The tables of a recipe's file, as they stand there; raises UnknownName."""
    return tomllib.loads(text(name))
