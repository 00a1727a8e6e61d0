"""Files that are whole or absent: written aside, flushed, renamed."""

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from prvr.manifests.errors import CorruptData, MissingInput

_BLOCK = 1 << 20


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is flushed and renamed over ``path``, else removed."""
    sweep(path)
    aside = aside_of(path)
    try:
        yield aside
        sync(aside)
        aside.replace(path)
        sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def aside_of(path: Path) -> Path:
    """A name beside ``path`` that no other process uses, and that tells whether its maker still lives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}.tmp")


def sweep(path: Path) -> None:
    """Remove what killed processes of this machine left beside ``path`` under names of ``aside_of``."""
    prefix = f".{path.name}.{socket.gethostname()}-"
    if not path.parent.is_dir():
        return
    for left in path.parent.iterdir():
        maker = left.name.removeprefix(prefix).split("-")[0]
        if left.name.startswith(prefix) and maker.isdigit() and not alive(int(maker)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def alive(process: int) -> bool:
    """Whether a process of this machine runs. One that is dead and waits for its parent to notice does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        )
    except OSError:
        return True  # No /proc on this system.
    return state not in ("Z", "X")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON document, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document.

    Raises:
        MissingInput: the file is absent.
        CorruptData: it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingInput(f"{path}: no such file") from None
    except ValueError as error:
        raise CorruptData(f"{path}: not JSON ({error})") from None


def sync(path: Path) -> None:
    """Flush a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """Hexadecimal SHA-256 of a JSON value in canonical form: the same for equal values, whatever the key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
