"""What something on disk is, and whether it is sound: what ``prvr-doctor`` does."""

import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

from prvr.datasets import foreign as layouts
from prvr.manifests.errors import ConfigurationError, MissingInput, PrvrError
from prvr.manifests.split import Split
from prvr.train.diagnoses import Diagnosis, Look, foreign, run, shards, split, store, wrong

# A folder of shards is a split folder too, and a run may hold an .npz of scores: the first that recognises it counts.
KINDS: tuple[ModuleType, ...] = (store, shards, split, run, foreign)
_DAMAGE = (PrvrError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""What a reader raises on a file that is not what its name says: JSON of another shape among them."""


def diagnose(path: Path, *, against: Path | None = None, sample: int = 200) -> Diagnosis:
    """Find out.

    Args:
        against: a split folder, whose durations give rates and whose ids say what is missing.
        sample: items whose values are looked at; 0 for all.

    Raises:
        MissingInput: nothing is at ``path``.
        ConfigurationError: what is there is none of the kinds.
    """
    if not path.exists():
        raise MissingInput(f"{path}: nothing is there")
    kind = _kind(path)
    if kind is None:
        raise ConfigurationError(
            f"{path}: none of {', '.join([kind.KIND for kind in KINDS])} ({', '.join(layouts.names())}){_near(path)}"
        )
    look = Look(Split.read(against) if against else None, sample or sys.maxsize)
    try:
        found: Diagnosis = kind.diagnose(path, look)
    except _DAMAGE as error:
        reason = str(error) if isinstance(error, PrvrError | OSError) else f"{path}: it cannot be read ({error!r})"
        return Diagnosis(path, kind.KIND, {}, wrong([reason]))
    return found


def _kind(path: Path) -> ModuleType | None:
    return next((kind for kind in KINDS if kind.recognise(path)), None)


def _near(path: Path) -> str:
    """What of the known kinds lies in a folder, or around a file."""
    around = [path.parent] if path.is_file() else sorted(islice(path.iterdir(), 200))
    known = [f"{near} ({kind.KIND})" for near in around if (kind := _kind(near))]
    return f"; try {layouts.some(known)}" if known else ""
