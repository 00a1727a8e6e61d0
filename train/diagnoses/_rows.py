"""What the values of features say: statistics, damage, and a guess at the backbone."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prvr.datasets.foreign import some
from prvr.train.diagnoses import Finding, notes, spread, wrong

type Array = NDArray[Any]

_BLOCK = 1024
_KEPT = 8
_MOST_PARTS = 4
_LARGEST = float(np.finfo(np.float32).max)
_UNIT = 5e-3
"""How far from 1 a norm may be: half precision, and x / (||x|| + 1e-5) of a short row."""

# Width and whether any value is negative, to who makes such rows. A ReLU before pooling leaves no negative value.
_LIKELY = {
    (128, False): "VGGish (sound)",
    (500, True): "C3D after PCA (ActivityNet's)",
    (512, False): "ResNet-18 or -34, or R(2+1)D-18",
    (512, True): "CLIP ViT-B/32 or ViT-B/16",
    (768, True): "CLIP ViT-L/14, or RoBERTa-base (words)",
    (1024, False): "I3D (Inception), average-pooled",
    (1024, True): "RoBERTa-large (words), or CLIP RN50 or ViT-H/14",
    (2048, False): "ResNet-50, -101 or -152, average-pooled",
    (2304, False): "SlowFast-R50",
    (4096, False): "C3D or VGG, fc6 or fc7",
}
_LIKELY_JOINED: dict[tuple[int, ...], str] = {
    (2048, 1024): "TVR's ResNet-152 and I3D",
    (2304, 512): "SlowFast and CLIP, as for QVHighlights",
}


@dataclass
class Census:
    """Counts over items added one by one; memory does not grow with their rows."""

    items: int = 0
    rows: int = 0
    norms: list[Array] = field(default_factory=list)
    low: float = np.inf
    high: float = -np.inf
    negative: int = 0
    values: int = 0
    repeated: int = 0
    where: dict[str, dict[str, int]] = field(default_factory=dict)
    still: list[str] = field(default_factory=list)
    same: dict[bytes, list[str]] = field(default_factory=dict)
    kept: list[Array] = field(default_factory=list)

    def add(self, id_: str, rows: Array) -> None:
        """Count one item's rows [T, E]."""
        digest, last, repeated = hashlib.blake2b(str(rows.shape).encode()), rows[:0], 0
        for start in range(0, len(rows), _BLOCK):
            block = np.ascontiguousarray(rows[start : start + _BLOCK])
            digest.update(block)
            chain = np.concatenate([last, block])
            repeated += int((chain[1:] == chain[:-1]).all(axis=1).sum())
            last = block[-1:]
            self._add_block(id_, block)
        self.items += 1
        self.rows += len(rows)
        self.repeated += repeated
        if repeated == len(rows) - 1 > 0:
            self.still.append(id_)
        self.same.setdefault(digest.digest(), []).append(id_)

    def _add_block(self, id_: str, block: Array) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            values = block.astype(np.float64)
        # What float32 cannot hold is Inf to all that reads features.
        finite = (np.abs(values) <= _LARGEST).all(axis=1)
        sound = values[finite]
        norms = np.linalg.norm(sound, axis=1)
        self._count("rows with NaN or Inf", id_, int((~finite).sum()))
        self._count("rows of zeros alone", id_, int((norms == 0).sum()))
        self._count("rows of one value", id_, int(((np.ptp(sound, axis=1) == 0) & (norms > 0)).sum()))
        if len(sound):
            self.norms.append(norms)
            self.low, self.high = min(self.low, float(sound.min())), max(self.high, float(sound.max()))
            self.negative += int((sound < 0).sum())
            self.values += sound.size
            self.kept.append(sound[norms > 0][:: max(1, len(sound) // _KEPT)][:_KEPT].astype(np.float32))

    def _count(self, what: str, id_: str, count: int) -> None:
        if count:
            places = self.where.setdefault(what, {})
            places[id_] = places.get(id_, 0) + count

    def facts(self) -> dict[str, Any]:
        """Norms, range of the values, and what they look like."""
        if not self.norms:
            return {}
        norms = np.concatenate(self.norms)
        unit = float((np.abs(norms - 1) < _UNIT).mean()) >= 0.99
        parts = () if unit else self._joined()
        normalised = "yes, each row" if unit else "yes, each part of a row" if parts else "no"
        found: dict[str, Any] = {
            "norm": spread(norms),
            "normalised": normalised,
            "values": {
                "from": self.low,
                "to": self.high,
                "negative": f"{100 * self.negative / max(1, self.values):.1f} %",
            },
        }
        if self.repeated:
            found["repeated rows"] = f"{self.repeated:,} of {self.rows:,}"
        return found | {"looks like": self._likely(parts)}

    def findings(self) -> list[Finding]:
        """NaN, Inf and zeros are wrong; constant and repeated rows are odd."""
        found = []
        for what, places in self.where.items():
            text = f"{what}: {sum(places.values()):,}, in {len(places):,} of {self.items:,}: {some(list(places))}"
            found += notes([text]) if what == "rows of one value" else wrong([text])
        if self.still:
            found += notes([f"{len(self.still):,} of {self.items:,} are one row repeated: {some(self.still)}"])
        copies = [" = ".join(ids[:3]) for ids in self.same.values() if len(ids) > 1]
        if copies:
            found += notes([f"the same rows under several ids: {some(copies)}"])
        return found

    def _joined(self) -> tuple[int, ...]:
        """Widths of the parts, where each row is several vectors of unit length side by side."""
        rows = np.concatenate(self.kept)
        squares = np.cumsum(rows.astype(np.float64) ** 2, axis=1) if len(rows) else np.zeros((0, 0))
        if not squares.size:
            return ()
        parts = round(float(np.median(squares[:, -1])))
        # Where one source ended early its part is zeros, so not every row shows all parts.
        squares = squares[np.abs(squares[:, -1] - parts) < _UNIT * parts]
        if not 2 <= parts <= _MOST_PARTS or len(squares) < 0.9 * len(rows):
            return ()
        known = {width for width, _ in _LIKELY}
        cuts = [0]
        for part in range(1, parts):
            places = np.flatnonzero((np.abs(squares - part) < _UNIT * part).all(axis=0)) + 1
            if not len(places):
                return ()
            # A column of zeros beside the border fits too; a known width is the better guess.
            cuts.append(int(next((place for place in places if int(place) - cuts[-1] in known), places[0])))
        return tuple(int(width) for width in np.diff([*cuts, rows.shape[1]]))

    def _likely(self, parts: Sequence[int]) -> str:
        rows = np.concatenate(self.kept)
        if parts:
            joined = " ++ ".join(map(str, parts))
            return f"{joined}: likely {_LIKELY_JOINED.get(tuple(parts), 'several backbones, each normalised')}"
        guess = _LIKELY.get((rows.shape[1], self.negative > 0))
        return f"likely {guess}" if guess else "nothing known"
