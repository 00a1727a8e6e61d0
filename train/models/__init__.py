"""The models: one paper or idea a file, found by its name."""

from functools import partial
from types import ModuleType

from prvr.manifests import registry

names = partial(registry.names, __name__)


def load(name: str) -> ModuleType:
    """The model's module; raises UnknownName."""
    return registry.load(__name__, name, kind="model")
