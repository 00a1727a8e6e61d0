"""Nested settings: from ``--set a.b=c`` and TOML files to frozen dataclasses, every unknown key an error."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from prvr.manifests.errors import ConfigurationError, UnknownName

type Settings = dict[str, Any]


def assignments(pairs: Iterable[str]) -> Settings:
    """``["a.b=1"]`` to ``{"a": {"b": 1}}``. Values are TOML; what is not TOML is a string.

    Raises:
        ConfigurationError: no ``=``, or no dotted name before it.
    """
    result: Settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        path = name.strip().split(".")
        if not equals or len(path) < 2 or not all(path):
            raise ConfigurationError(f"--set {pair!r}: write it as NAME.KEY=VALUE")
        branch: Settings = {}
        leaf = branch
        for step in path[:-1]:
            leaf = leaf.setdefault(step, {})
        leaf[path[-1]] = _value(value.strip())
        result = merged(result, branch)
    return result


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Both, tables merged key by key; where they disagree, ``over``."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def read_toml(path: Path) -> Settings:
    """Read a TOML file.

    Raises:
        ConfigurationError: absent, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not TOML ({error})") from None


def build[T](cls: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """A frozen dataclass from a table; types are checked, nested dataclasses are built.

    Raises:
        UnknownName: a key that the dataclass does not have.
        ConfigurationError: a value of the wrong type, or one that the dataclass refuses.
    """
    from pydantic import TypeAdapter, ValidationError

    _refuse_unknown(cls, values, where)
    try:
        return TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join([where, *(str(step) for step in first["loc"])])
        raise ConfigurationError(f"{path}: {first['msg']}") from None


def _refuse_unknown(cls: type, values: Mapping[str, Any], where: str) -> None:
    types = get_type_hints(cls)
    for key, value in values.items():
        if key not in types:
            raise UnknownName("setting", f"{where}.{key}", (f"{where}.{name}" for name in types))
        if is_dataclass(types[key]) and isinstance(value, Mapping):
            _refuse_unknown(types[key], value, f"{where}.{key}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
