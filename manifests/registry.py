"""The file is the registration: a folder's modules (or data files) are its entries."""

import importlib
import pkgutil
from importlib import resources
from types import ModuleType

from prvr.manifests.errors import UnknownName


def names(package: str) -> tuple[str, ...]:
    """Entries of a package as users type them, sorted: the file ``gmmformer_v2.py`` is ``gmmformer-v2``."""
    paths = importlib.import_module(package).__path__
    return tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(paths) if not m.name.startswith("_")))


def load(package: str, name: str, *, kind: str) -> ModuleType:
    """Import one entry. ``kind`` names it in the error.

    Raises:
        UnknownName: no file of that name.
    """
    if name not in names(package):
        raise UnknownName(kind, name, names(package))
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def data_names(package: str) -> tuple[str, ...]:
    """Names of the TOML files in a package, without the ending."""
    files = resources.files(package).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def data(package: str, name: str, *, kind: str) -> str:
    """Text of one TOML file of a package.

    Raises:
        UnknownName: no file of that name.
    """
    if name not in data_names(package):
        raise UnknownName(kind, name, data_names(package))
    return (resources.files(package) / f"{name}.toml").read_text(encoding="utf-8")
