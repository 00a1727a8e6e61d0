"""Checkpoints of ``torch.save``, read without running what is in them.

A pickle is a program: it names functions and has them called. Here its names are listed first, by its opcodes alone,
and one that is not on our list ends the reading before anything was made. What is left is read by torch's own restricted
unpickler (``weights_only``), which never imports what a file names; the classes of other people's code are stood in for
by ours, which only hold what they are given.
"""

import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from prvr.manifests.errors import CorruptData, MissingInput, PrvrError

_ZIP = b"PK\x03\x04"
_LEGACY_PICKLES = 5  # magic number, protocol, system, object, storage keys; what follows is raw bytes
_STORAGES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class Plain:
    """Stands for an object of a class that is not imported: its attributes, and nothing else."""


class NumberType:
    """Stands for ``numpy.dtype``: what kind of number, and in which byte order."""

    def __init__(self, code: str, align: bool, copy: bool) -> None:
        if code not in _NUMBERS:
            raise ValueError(f"a NumPy value of type {code!r}")
        self.code = code
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = "=" if state[1] == "|" else state[1]


def number(kind: NumberType, data: bytes) -> bool | int | float:
    """Stands for ``numpy.core.multiarray.scalar``."""
    value: bool | int | float = np.frombuffer(data, f"{kind.order}{kind.code}", count=1).item()
    return value


_STAND_INS: Mapping[str, Callable[..., Any]] = {
    # MS-SL's configuration: a dict whose keys are attributes too.
    "easydict.EasyDict": OrderedDict,
    # In the optimizer's state of the GMMFormer family.
    "Opts.optimization.WarmupLinearSchedule": Plain,
    # That family's recalls. NumPy 2 has renamed its module.
    "numpy.dtype": NumberType,
    "numpy.core.multiarray.scalar": number,
    "numpy._core.multiarray.scalar": number,
}
_ALLOWED = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "_codecs.encode",  # how protocol 2 writes the bytes of a NumPy number
    *(f"torch.{kind}Storage" for kind in _STORAGES),
    *_STAND_INS,
}


def read(path: Path) -> Any:
    """What ``torch.save`` wrote, in its zip format or the one before: containers, numbers, strings and CPU tensors.

    Raises:
        MissingInput: no such file.
        CorruptData: it names anything that is not on our list, or is not whole.
    """
    if not path.is_file():
        raise MissingInput(f"{path}: no such file")
    try:
        for name in _names(path):
            if name not in _ALLOWED:
                raise CorruptData(
                    f"{path}: names {name}, which no checkpoint of the authors needs; nothing in it was executed"
                )
        with torch.serialization.safe_globals([(ours, name) for name, ours in _STAND_INS.items()]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except PrvrError:
        raise
    except Exception as error:  # Broken bytes make the readers of pickles and archives fail in any way there is.
        raise CorruptData(f"{path}: not a whole checkpoint of torch.save ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """The first sentence of what went wrong: torch goes on to advise a reading without restrictions."""
    text = str(error).rpartition("WeightsUnpickler error: ")[2].strip() or type(error).__name__
    return text.splitlines()[0].split(". ")[0]


def _names(path: Path) -> Iterator[str]:
    """``module.name`` of all that a file's pickles would have imported."""
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:  # as torch tells its two formats apart
            file.seek(0)
            for _ in range(_LEGACY_PICKLES):
                yield from _names_of_pickle(file)
            return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise CorruptData(f"{path}: {member.filename} in it is compressed, which torch.save does not do")
            if member.filename.endswith(".pkl"):
                with archive.open(member) as pickled:
                    yield from _names_of_pickle(pickled)


def _names_of_pickle(file: IO[bytes]) -> Iterator[str]:
    """Protocol 4 and later take module and name from the stack, to which they were pushed just before."""
    pushed: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ("GLOBAL", "INST"):
            yield argument.replace(" ", ".", 1)
        elif opcode.name == "STACK_GLOBAL":
            yield ".".join(str(part) for part in pushed[-2:])
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = pushed[-1] if pushed else None
            continue
        elif opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = pushed[-1] if pushed else None
            continue
        got = opcode.name in ("GET", "BINGET", "LONG_BINGET")
        pushed = [*pushed[-1:], memo.get(argument) if got else argument]
