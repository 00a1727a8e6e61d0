"""TensorFlow checkpoints (its format V2: ``<prefix>.index`` and ``<prefix>.data-00000-of-00001``), read without TensorFlow.

The index is a sorted table as LevelDB writes it: blocks of keys and values, a block that says where these are, a footer.
The values are protocol buffers (tensorflow/core/protobuf/tensor_bundle.proto): under the empty key a header, under each
variable's name where its bytes are. Every block and every tensor has a checksum, which is held against what is read.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput

_FOOTER = 48  # Bytes: two block handles, filled up to 40, and the magic number.
_MAGIC = 0xDB4775248B80FB57
_TRAILER = 5  # Bytes after a block: one says how it is compressed, four are its checksum.
_FLOAT32 = 1  # DT_FLOAT of tensorflow/core/framework/types.proto.


def read_checkpoint(index: Path, keep: Callable[[str], bool] = lambda name: True) -> dict[str, NDArray[np.float32]]:
    """Variables by name, of those names that ``keep`` accepts; their axes are in TensorFlow's order.

    Raises:
        MissingInput: the index is not there, or a data file that it names.
        ConfigurationError: not an index, or a compressed one, or one of a big-endian machine; or a variable that is kept in
            slices or is not of float32.
        CorruptData: bytes are missing, or have another checksum.
    """
    try:
        entries = {name.decode(): _fields(value) for name, value in _table(index.read_bytes(), index)}
        header = entries.pop("")
        if _number(header, 2):
            raise ConfigurationError(f"{index}: of a big-endian machine, which is not read here")
        shards = _number(header, 1)
        return {name: _tensor(entry, name, index, shards) for name, entry in entries.items() if keep(name)}
    except FileNotFoundError as error:
        raise MissingInput(f"{error.filename}: no such file; a checkpoint is an index and its data beside it") from None
    except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise CorruptData(f"{index}: damaged ({type(error).__name__}: {error}); fetch it again") from None


def _tensor(entry: dict[int, list[Any]], name: str, index: Path, shards: int) -> NDArray[np.float32]:
    """The variable of a BundleEntryProto: 1 type, 2 shape, 3 shard, 4 offset, 5 size, 6 checksum, 7 slices."""
    if _number(entry, 1) != _FLOAT32 or 7 in entry:
        raise ConfigurationError(f"{index}: {name} is kept in slices, or not of float32; neither is read here")
    # TensorShapeProto: 2 dimensions, each with 1 its size.
    shape = [_number(_fields(dimension), 1) for dimension in _fields(entry.get(2, [b""])[-1]).get(2, [])]
    path = index.with_name(f"{index.stem}.data-{_number(entry, 3):05d}-of-{shards:05d}")
    with path.open("rb") as file:
        file.seek(_number(entry, 4))
        data = file.read(_number(entry, 5))
    if len(data) != 4 * int(np.prod(shape)) or _masked(google_crc32c.value(data)) != _number(entry, 6):
        raise CorruptData(f"{path}: {name} is not what its index says was written; fetch both again")
    return np.frombuffer(data, "<f4").reshape(shape).astype(np.float32)


def _table(table: bytes, index: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in order."""
    footer = table[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:]) != (_MAGIC,):
        raise ConfigurationError(f"{index}: not the index of a TensorFlow checkpoint")
    # The first handle is of a block of properties, of which there are none.
    _, at = _handle(footer, 0)
    blocks, _ = _handle(footer, at)
    for _, value in _pairs(_block(table, blocks, index)):
        handle, _ = _handle(value, 0)
        yield from _pairs(_block(table, handle, index))


def _block(table: bytes, place: slice, index: Path) -> bytes:
    """One block's content, its checksum held against it."""
    compression, checksum = struct.unpack("<BI", table[place.stop : place.stop + _TRAILER])
    if compression:
        raise ConfigurationError(f"{index}: compressed (method {compression}), which is not read here")
    if _masked(google_crc32c.value(table[place.start : place.stop + 1])) != checksum:
        raise CorruptData(f"{index}: a block has another checksum than when it was written; fetch it again")
    return table[place]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block. A key begins with ``shared`` bytes of the one before; the places where none are shared
    are listed at the block's end, for searching."""
    (restarts,) = struct.unpack("<I", block[-4:])
    at, key = 0, b""
    while at < len(block) - 4 * (restarts + 1):
        shared, at = _varint(block, at)
        more, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + more]
        at += more + length
        yield key, block[at - length : at]


def _handle(data: bytes, at: int) -> tuple[slice, int]:
    """A block's place in the table, and where the handle ends."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return slice(offset, offset + size), at


def _fields(message: bytes) -> dict[int, list[Any]]:
    """A protocol buffer's fields by their number: whole numbers, and bytes."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
            case 2:
                length, at = _varint(message, at)
                value, at = message[at : at + length], at + length
            case 5:
                (value,), at = struct.unpack_from("<I", message, at), at + 4
            case 1:
                (value,), at = struct.unpack_from("<Q", message, at), at + 8
            case kind:
                raise KeyError(f"a field of kind {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _number(fields: dict[int, list[Any]], field: int) -> int:
    """A whole number, which is left out where it is 0."""
    return int(fields.get(field, [0])[-1])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def _masked(checksum: int) -> int:
    """As LevelDB keeps checksums: a checksum of data that holds its own would be no good."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
