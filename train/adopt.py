"""``prvr-adopt``: the authors' checkpoint becomes a run, which ``prvr-eval`` ranks with as their code did.

A model alone, or one that was released with an objective: ``gmmformer-v2+ral``. Two forms are known: MS-SL's ``model.ckpt``
with ``model`` and ``model_cfg``, whose branch weights stand in ``opt.json`` beside it; and the ``best.ckpt`` of GMMFormer and
of what was built on its code, with ``state_dict`` and ``config``.
"""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from prvr.datasets.index import Index
from prvr.manifests.errors import ConfigurationError, CorruptData
from prvr.manifests.files import read_json, sha256_of, write_text
from prvr.manifests.settings import Settings, merged
from prvr.train import models, objectives, pickles
from prvr.train.checkpoint import save_model
from prvr.train.config import RunConfig, from_tables
from prvr.train.retriever import Retriever
from prvr.train.run import UNKNOWN, card, features_of, make_retriever, same_features

_OPTIONS = {
    "hidden_size": "hidden",
    "n_heads": "heads",
    "event_size": "spans",
    "input_drop": "input_dropout",
    "drop": "dropout",
    "sft_factor": "temperature",
    "clip_scale_w": "clip_weight",
    "frame_scale_w": "frame_weight",
    "max_desc_l": "max_words",
    "max_ctx_l": "max_frames",
    "map_size": "clips",
    "initializer_range": "initializer_range",
}
"""The released codes' names of a model's options. A model takes those that it has, and needs each of them."""
_WIDTHS = {"video": ("visual_input_size", "visual_feat_dim"), "text": ("query_input_size", "q_feat_size")}
_NAMES = ("collection", "dataset_name")
_FORMS = {"model": "model_cfg", "state_dict": "config"}
"""Keys of the weights, and of the configuration beside them."""
_BESIDE = "opt.json"
_AS_STORED = ("amdnet",)
"""Models whose released code reads features as they are; the others' L2-normalises each row."""
_SPLITS = ("test", "dev", "train")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Released:
    """What a checkpoint holds: its weights under their released names, its configuration, and the epoch it is of."""

    state: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    epoch: int | None


@dataclass(frozen=True)
class Adopted:
    """A run that was made: its model, parameters, widths of its features, and the epoch of its checkpoint."""

    run: Path
    model: str
    parameters: int
    widths: Mapping[str, int]
    epoch: int | None

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "run": str(self.run),
            "model": self.model,
            "parameters": self.parameters,
            "widths": dict(self.widths),
            "epoch": self.epoch,
        }

    def text(self) -> str:
        """For a reader."""
        widths = " and ".join(f"{stream} features {width} wide" for stream, width in self.widths.items())
        return f"{self.run}: {self.model} of {self.parameters:,} parameters, for {widths}"


def adopt(
    checkpoint: Path, name: str, run: Path, *, shards: Path | str | None, settings: Settings, overwrite: bool
) -> Adopted:
    """Make a run of a released checkpoint of the model ``name``, which may be one with an objective.

    Args:
        shards: the run remembers their features and refuses others; None where only widths are known.
        settings: tables of ``--set`` and ``--config``, which win over the checkpoint's configuration.

    Raises:
        MissingInput: no checkpoint, or no shards.
        CorruptData: it is not whole, or holds what is neither weights nor configuration.
        UnknownName: no such model, or objective.
        ConfigurationError: the checkpoint is of another model or does not say all that the model needs; the shards have
            other widths; the run exists.
    """
    base, *added = name.split("+")
    module = models.load(base)
    for objective in added:
        objectives.load(objective)
    if name not in _adoptable():
        raise ConfigurationError(f"{name}: its authors released no checkpoint; adopted are {', '.join(_adoptable())}")
    _free(run, overwrite=overwrite)
    released = read_released(checkpoint)
    states = _renamed(name, released.state, checkpoint)
    config = _configuration(name, module, released.settings, settings, checkpoint)
    widths = _widths(released.settings, checkpoint)
    try:
        with torch.device("meta"):  # Shapes alone: a configuration that is a lie takes no memory.
            model = make_retriever(config, frame_width=widths["video"], word_width=widths["text"])
    except (RuntimeError, TypeError):
        sizes = ", ".join(f"{key} {value}" for key, value in config.modules[base].items())
        raise ConfigurationError(f"{checkpoint}: no model has the sizes of its configuration: {sizes}") from None
    parts: dict[str, nn.Module] = {base: model}
    if isinstance(model, Retriever):
        parts = {base: model.model, **model.objectives}
    for part, state in states.items():
        _fitting(state, parts[part].state_dict(), checkpoint)
        parts[part].load_state_dict({key: tensor.float() for key, tensor in state.items()}, assign=True)

    features = {stream: [_unknown(stream, width)] for stream, width in widths.items()} | {"pooling": "published"}
    dataset, subset = next((str(released.settings[key]) for key in _NAMES if key in released.settings), UNKNOWN), ""
    if shards is not None:
        index = Index.read(shards, next((split for split in _SPLITS if Index.exists(shards, split)), _SPLITS[0]))
        same_features(features, index, str(checkpoint))
        features, dataset, subset = features_of(index), index.dataset, index.subset
    about = {
        "config": config.to_tables(),
        "dataset": dataset,
        "subset": subset,
        "features": features,
        "selected_on": "val",  # All released codes choose the epoch on the caption file of this name.
        "adopted": {"file": checkpoint.name, "sha256": sha256_of(checkpoint), "epoch": released.epoch},
    }
    if run.exists():
        shutil.rmtree(run)
    config.write(run / "config.toml")
    write_text(run / "card.md", card(about, {}))
    save_model(run, model, about)
    count = sum(tensor.numel() for state in states.values() for tensor in state.values())
    return Adopted(run, name, count, widths, released.epoch)


def read_released(checkpoint: Path) -> Released:
    """Read a checkpoint, and ``opt.json`` beside MS-SL's; nothing in it is executed.

    Raises:
        MissingInput: no such file.
        CorruptData: it is not whole, names what it should not, or is of neither form.
    """
    found = pickles.read(checkpoint)
    keys = [] if not isinstance(found, Mapping) else [key for key in _FORMS if {key, _FORMS[key]} <= found.keys()]
    if not keys:
        forms = " nor ".join(f"{weights} and {settings}" for weights, settings in _FORMS.items())
        raise CorruptData(f"{checkpoint}: not a checkpoint of a known form: it has neither {forms}")
    state, settings, epoch = found[keys[0]], found[_FORMS[keys[0]]], found.get("epoch")
    if not isinstance(state, Mapping) or not isinstance(settings, Mapping):
        raise CorruptData(f"{checkpoint}: its {keys[0]} or its {_FORMS[keys[0]]} is not a table")
    for key, tensor in state.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise CorruptData(f"{checkpoint}: its weight {key!r} is not a tensor of floating-point numbers")
    beside = checkpoint.with_name(_BESIDE)
    if keys[0] == "model" and beside.is_file():
        options = read_json(beside)
        if not isinstance(options, dict):
            raise CorruptData(f"{beside}: not a table of options")
        settings = options | dict(settings)
    # The GMMFormer family trains on several GPUs inside of a module of this name.
    state = {key.removeprefix("module."): tensor for key, tensor in state.items()}
    return Released(state, settings, epoch if isinstance(epoch, int) else None)


def _configuration(
    name: str, module: ModuleType, theirs: Mapping[str, Any], settings: Settings, checkpoint: Path
) -> RunConfig:
    """``theirs`` in our names, under ``settings``; raises ConfigurationError where an option of the model is not told.

    Objectives have the settings of their released code, which are not in its configuration.
    """
    base = name.split("+")[0]
    wanted = {key: ours for key, ours in _OPTIONS.items() if ours in module.Options.__dataclass_fields__}
    options = {ours: theirs[key] for key, ours in wanted.items() if key in theirs} | settings.get(base, {})
    absent = {key: ours for key, ours in wanted.items() if ours not in options}
    if absent:
        raise ConfigurationError(
            f"{checkpoint}: its configuration does not tell {', '.join(absent)}; MS-SL's {_BESIDE} does, put it beside "
            f"the checkpoint, or give --set {base}.{next(iter(absent.values()))}=… and the like"
        )
    used = {*wanted, *_NAMES, "seed", *(key for keys in _WIDTHS.values() for key in keys)}
    unused = sorted(str(key) for key in theirs if key not in used)
    _log.debug("%s: of its configuration not used: %s", checkpoint, ", ".join(unused) or "nothing")
    data = {"normalise": base not in _AS_STORED, "max_words": options["max_words"]}
    tables: Settings = {"model": name, "data": data, base: options}
    if "seed" in theirs:
        tables["seed"] = theirs["seed"]
    return from_tables(merged(tables, settings))


def _widths(theirs: Mapping[str, Any], checkpoint: Path) -> dict[str, int]:
    widths = {}
    for stream, keys in _WIDTHS.items():
        width = next((theirs[key] for key in keys if key in theirs), None)
        if not isinstance(width, int) or width < 1:
            raise ConfigurationError(f"{checkpoint}: its configuration has no {' or '.join(keys)}, but {width!r}")
        widths[stream] = width
    return widths


def _renamed(name: str, state: Mapping[str, Tensor], checkpoint: Path) -> dict[str, dict[str, Tensor]]:
    """The weights under our names, of each part; the error of a checkpoint of another model says of which."""
    try:
        renamed = _parts(name, state)
    except ConfigurationError as error:
        fits = [other for other in _adoptable() if other != name and _takes(other, state)]
        hint = f"; its weights are those of --model {fits[0]}" if fits else ""
        raise ConfigurationError(f"{checkpoint}: {error}{hint}") from None
    return renamed


def _parts(name: str, state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The model's weights, and its objective's, by their names; raises ConfigurationError where ``state`` is of another."""
    base, *added = name.split("+")
    if not added:
        return {base: models.load(base).from_released(state)}
    of_model, of_objective = objectives.load(added[0]).from_released(state)
    return {base: of_model, added[0]: of_objective}


def _adoptable() -> list[str]:
    """Models, and models with the objective that they were released with."""
    alone = [name for name in models.names() if hasattr(models.load(name), "from_released")]
    found = {name: objectives.load(name) for name in objectives.names()}
    return alone + [f"{found[n].RELEASED_ON}+{n}" for n in found if hasattr(found[n], "from_released")]


def _takes(name: str, state: Mapping[str, Tensor]) -> bool:
    try:
        _parts(name, state)
    except ConfigurationError:
        return False
    return True


def _fitting(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], checkpoint: Path) -> None:
    """Raises ConfigurationError where weights are of other names or shapes than the model's."""
    theirs, ours = ({key: list(tensor.shape) for key, tensor in one.items()} for one in (state, expected))
    odd = [
        f"{key} {theirs.get(key, 'absent')}, not {ours.get(key, 'there')}"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key)
    ]
    if odd:
        raise ConfigurationError(
            f"{checkpoint}: {len(odd)} weights are not what its configuration says: {'; '.join(odd[:3])}"
        )


def _unknown(stream: str, width: int) -> dict[str, Any]:
    """What a run remembers of features of which only the width is known."""
    facts = ("backbone", "recipe", "recipe_digest", "weights", "weights_sha256")
    return {"stream": stream, **dict.fromkeys(facts, UNKNOWN), "dim": width}


def _free(run: Path, *, overwrite: bool) -> None:
    """Raises ConfigurationError where a folder has something in it that is not to be replaced."""
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return
    if not (run / "config.toml").is_file():
        raise ConfigurationError(f"{run}: not empty, and not a run; give another --out")
    if not overwrite:
        raise ConfigurationError(f"{run}: a run is there; give another --out, or --overwrite to replace it")
