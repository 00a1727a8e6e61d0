"""Checks that the options of several models need."""

import math
from collections.abc import Iterable

from prvr.manifests.errors import ConfigurationError


def check_ranges(
    model: str, options: object, *, counts: Iterable[str], rates: Iterable[str], weights: Iterable[str] = ()
) -> None:
    """Raises ConfigurationError: a count below 1, a rate outside of [0, 1), a weight below 0 or infinite.

    Args:
        model: as users type it, for the message.
        options: has attributes of these names.
        counts, rates, weights: names of options.
    """
    for name in counts:
        if getattr(options, name) < 1:
            raise ConfigurationError(f"{model}: {name} is {getattr(options, name)}, but must be at least 1")
    for name in rates:
        if not 0 <= getattr(options, name) < 1:
            raise ConfigurationError(f"{model}: {name} is {getattr(options, name)}, but must be in [0, 1)")
    for name in weights:
        if not 0 <= getattr(options, name) < math.inf:
            raise ConfigurationError(
                f"{model}: {name} is {getattr(options, name)}, but must be finite and not negative"
            )
