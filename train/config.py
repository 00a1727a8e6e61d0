"""The configuration of a run: defaults, under a preset, under ``--config`` and ``--set``, under the options given.

On disk it is ``run/config.toml``, which ``prvr-train --config`` takes as it is.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.manifests.files import write_text
from prvr.manifests.settings import Settings, build, merged, read_toml

PRESETS = "prvr.train.presets"
presets = partial(registry.data_names, PRESETS)


@dataclass(frozen=True)
class Data:
    """What a batch is made of: rows L2-normalised (x / (||x|| + 1e-5)) or as stored, and how many words are read."""

    normalise: bool = True
    max_words: int = 30


@dataclass(frozen=True)
class Optim:
    """The optimiser beside its learning rate: ``name`` is ``bertadam`` (the papers') or ``adamw``; ``warmup`` is the part of all
    steps in which the rate rises."""

    name: Literal["bertadam", "adamw"] = "bertadam"
    weight_decay: float = 0.01
    warmup: float = 0.01


@dataclass(frozen=True)
class Loop:
    """How training goes on, and when it stops.

    Args:
        patience: it stops when more than so many epochs in a row were no better, as in MS-SL's code.
        save_seconds: within an epoch, where training stands is written so often.
        accumulate: batches whose gradients are averaged for one optimizer step. Negatives are of one batch, so this is not
            the loss of a batch so many times as large.
        chance_epochs: it stops when so many first epochs have ranked no better than chance; 0 never does.

    Raises:
        ConfigurationError: a value out of its range.
    """

    patience: int = 10
    save_seconds: float = 60.0
    accumulate: int = 1
    chance_epochs: int = 10

    def __post_init__(self) -> None:
        if self.accumulate < 1 or self.patience < 0 or self.chance_epochs < 0:
            raise ConfigurationError(
                f"loop: accumulate {self.accumulate} is at least 1, patience {self.patience} and chance_epochs "
                f"{self.chance_epochs} at least 0"
            )


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's weights, beside its shards.

    Args:
        model: base model and added objectives, ``ms-sl+ice``.
        preset: whose values these were before they were changed; empty for none.
        epochs, batch_size (videos), lr, seed: of the training.
        precision: ``fp32``, or ``bf16`` autocast on a GPU.
        threads: of the CPU's arithmetic, on which the last bits depend; 0 for torch's own choice.
        select_on: split whose SumR chooses the epoch; empty for dev if there is one, else test.
        data, optim, loop: see there.
        modules: settings of the model and of each objective, by name.
    """

    model: str = "ms-sl"
    preset: str = ""
    epochs: int = 100
    batch_size: int = 128
    lr: float = 2.5e-4
    seed: int = 2018
    precision: str = "fp32"
    threads: int = 0
    select_on: str = ""
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    loop: Loop = field(default_factory=Loop)
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.lr > 0:
            raise ConfigurationError(
                f"epochs {self.epochs}, batch_size {self.batch_size} and lr {self.lr} are all above 0"
            )
        if self.precision not in ("fp32", "bf16"):
            raise ConfigurationError(f"precision {self.precision!r}: fp32 or bf16")

    @property
    def base(self) -> str:
        """Name of the model alone."""
        return self.model.split("+")[0]

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the objectives added to those of the model's paper."""
        return tuple(self.model.split("+")[1:])

    def to_tables(self) -> Settings:
        """As in a TOML file: the modules are tables beside the others."""
        values = asdict(self)
        modules: Settings = values.pop("modules")
        return {name: value for name, value in (values | modules).items() if value != ""}

    def write(self, path: Path) -> None:
        """Write the TOML file."""
        import tomli_w

        write_text(path, tomli_w.dumps(self.to_tables()))

    @classmethod
    def read(cls, path: Path) -> "RunConfig":
        """Read the TOML file; raises ConfigurationError."""
        return from_tables(read_toml(path))


def resolve(options: Mapping[str, Any], settings: Mapping[str, Any], dataset: str) -> RunConfig:
    """The configuration of ``options`` (None where not given) and tables of ``settings``, for shards of ``dataset``.

    Raises:
        UnknownName: a preset, or a setting, that does not exist.
        ConfigurationError: a value of the wrong type.
    """
    given = {name: value for name, value in options.items() if value is not None}
    model = given.get("model") or settings.get("model")
    spelled = str(model or RunConfig.model)
    base = spelled.split("+")[0]
    named = given.get("preset") or settings.get("preset")
    fitting = (f"{spelled}.{dataset}", f"{base}.{dataset}", base)
    preset = named or next((name for name in fitting if name in presets()), "")
    values: Settings = {}
    if preset:
        values = tomllib.loads(registry.data(PRESETS, preset, kind="preset"))
        # A preset has settings for each objective that its own model adds; this run's model may add fewer.
        theirs, ours = (str(name).split("+")[1:] for name in (values["model"], model or values["model"]))
        values = {name: value for name, value in values.items() if name not in set(theirs) - set(ours)}
    return from_tables(merged(merged(values, settings), given) | {"preset": preset})


def from_tables(values: Mapping[str, Any]) -> RunConfig:
    """Inverse of ``RunConfig.to_tables``; a table that is neither ours nor a part of the model's name is an error."""
    own = set(RunConfig.__dataclass_fields__) - {"modules"}
    modules = {name: value for name, value in values.items() if name not in own}
    for name, value in modules.items():
        if not isinstance(value, Mapping):
            raise UnknownName("setting", name, own)
    return build(
        RunConfig, {name: value for name, value in values.items() if name in own} | {"modules": modules}, where="run"
    )
