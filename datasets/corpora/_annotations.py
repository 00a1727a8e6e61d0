"""Reading what others have written: files found by name, lines held against a schema, errors with file and line."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput


def locate(annotations: Path, *names: str, source: str) -> Path:
    """The first of these files that is in the folder; raises MissingInput, which says where it comes from."""
    for name in names:
        if (annotations / name).is_file():
            return annotations / name
    raise MissingInput(f"{annotations}: no {' or '.join(names)} there; from {source}")


def text_of(path: Path) -> str:
    """A file as UTF-8, without a byte-order mark; raises CorruptData."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptData(f"{path}: not UTF-8 ({error})") from None


def json_of[T](path: Path, schema: type[T]) -> T:
    """A JSON document of a schema that pydantic understands; numbers are numbers and never words.

    Raises:
        CorruptData: not JSON, or of another shape: says where.
    """
    return _reader(schema)(text_of(path), str(path))


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file, each with its place; blank ones are passed over. Raises CorruptData."""
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line


def json_lines[T](path: Path, schema: type[T]) -> Iterator[tuple[str, T]]:
    """The lines of a JSONL file, each with its place. Raises as ``json_of`` does, with the line's number."""
    read = _reader(schema)
    for where, line in lines_of(path):
        yield where, read(line, where)


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows of a CSV file with a header, each with its place (its last line); a quoted cell may hold a newline.

    Raises:
        CorruptData: a column is missing, a row has more or fewer cells than the header, or a quote is not closed.
    """
    # Without ``strict`` a quote that is not closed takes all rows after it into one cell, and says nothing.
    reader = csv.DictReader(io.StringIO(text_of(path)), strict=True)
    try:
        absent = [name for name in columns if name not in (reader.fieldnames or ())]
        if absent:
            raise CorruptData(f"{path}: no column {', '.join(absent)}; it has {', '.join(reader.fieldnames or ())}")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise CorruptData(f"{where}: another number of cells than the header has")
            yield where, row
    except csv.Error as error:
        raise CorruptData(f"{path}: after line {reader.line_num}: {error}") from None


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Name the place of what is refused inside: raises CorruptData for a ConfigurationError."""
    try:
        yield
    except ConfigurationError as error:
        raise CorruptData(f"{where}: {error}") from None


def length(seconds: float, where: str) -> float:
    """The length of a video, which times are held against; raises CorruptData for one that no video has."""
    if not 0 < seconds < math.inf:
        raise CorruptData(f"{where}: a video of {seconds} s")
    return seconds


def number(text: str, where: str) -> float:
    """A number from text; raises CorruptData."""
    try:
        return float(text)
    except ValueError:
        raise CorruptData(f"{where}: {text!r}, where a number belongs") from None


def _reader[T](schema: type[T]) -> Callable[[str, str], T]:
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(schema)

    def read(text: str, where: str) -> T:
        try:
            return adapter.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise CorruptData(f"{where}: {place}{': ' if place else ''}{first['msg']}") from None

    return read
