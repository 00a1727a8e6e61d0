"""The error tree. Every leaf is also a built-in error; the class decides a command's exit code (DESIGN: command contract)."""

import difflib
from collections.abc import Iterable


class PrvrError(Exception):
    """Work that failed after it had started: exit code 1."""

    exit_code = 1


class ConfigurationError(PrvrError, ValueError):
    """Work that cannot start: an option or input that is wrong. Exit code 2."""

    exit_code = 2


class MissingInput(ConfigurationError, FileNotFoundError):
    """An input that is absent or empty."""


class UnknownName(ConfigurationError, LookupError):
    """A name that nothing is registered under; says which names are near."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        choices = sorted(known)
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known: {', '.join(choices) or 'none'}")


class CorruptData(PrvrError, ValueError):
    """Bytes on disk that are not what was written."""


class DecodeError(PrvrError, ValueError):
    """A video that cannot be decoded, or not exactly."""
