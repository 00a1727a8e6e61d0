"""TensorFlow checkpoints: one that TensorFlow wrote, and made ones that are wrong in one place each."""

import base64
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from prvr.extract.tensorbundle import read_checkpoint
from prvr.manifests.errors import ConfigurationError, CorruptData, MissingInput

# What TensorFlow 2.21 wrote:
#   tf.raw_ops.SaveV2(prefix="tiny", tensor_names=["unit/conv_3d/w", "unit/conv_3d/b", "step"], shape_and_slices=[""] * 3,
#       tensors=[tf.constant(np.arange(6).reshape(1, 3, 2) / 8, tf.float32), tf.constant([0.5, -1.5]), tf.constant(7, tf.int64)])
INDEX = """
AAAGCAEaAggBAAQNc3RlcAgJEgAgICgINbvXnxEADhF1bml0L2NvbnZfM2QvYggBEgQSAggCIBgoCDWaJRrGDQEXdwgBEgwSAggBEgIIAxICCAIoGDUK7s2DAAAA
AAEAAAAA1TQ6pgAAAAABAAAAAMDyobAAAQJ2AGIAAAAAAQAAAADz95SiZwh0DgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAFf7gIskdUfb
"""
DATA = "AAAAAAAAAD4AAIA+AADAPgAAAD8AACA/AAAAPwAAwL8HAAAAAAAAAA=="


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.index").write_bytes(base64.b64decode(INDEX))
    (tmp_path / "tiny.data-00000-of-00001").write_bytes(base64.b64decode(DATA))
    return tmp_path / "tiny.index"


def _of_floats(name: str) -> bool:
    return name != "step"


def test_what_tensorflow_wrote(tiny: Path) -> None:
    found = read_checkpoint(tiny, _of_floats)
    assert list(found) == ["unit/conv_3d/b", "unit/conv_3d/w"]
    np.testing.assert_array_equal(found["unit/conv_3d/w"], np.arange(6, dtype=np.float32).reshape(1, 3, 2) / 8)
    np.testing.assert_array_equal(found["unit/conv_3d/b"], np.array([0.5, -1.5], np.float32))
    assert all(value.dtype == np.float32 and value.flags.writeable for value in found.values())


def test_a_type_that_is_not_read_is_named(tiny: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"step is kept in slices, or not of float32"):
        read_checkpoint(tiny)


def test_a_changed_byte_of_the_index_is_noticed(tiny: Path) -> None:
    whole, content = read_checkpoint(tiny, _of_floats), tiny.read_bytes()
    unnoticed = []
    for place in range(len(content)):
        tiny.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            found = read_checkpoint(tiny, _of_floats)
        except (CorruptData, ConfigurationError):
            continue
        unnoticed.append(place)
        assert all(np.array_equal(found[name], value) for name, value in whole.items())
    # The block of properties and its handle are not read, nor what fills up the footer.
    assert unnoticed == [*range(103, 116), 135, 136, *range(139, 175)]


@pytest.mark.parametrize("keep", [0, 20, 100, 182])
def test_an_index_that_ends_early(tiny: Path, keep: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:keep])
    with pytest.raises(ConfigurationError, match="not the index of a TensorFlow checkpoint"):
        read_checkpoint(tiny)


def test_data_that_are_absent_or_others(tiny: Path) -> None:
    data = tiny.with_name("tiny.data-00000-of-00001")
    content = data.read_bytes()
    data.write_bytes(content[:30])
    with pytest.raises(CorruptData, match="unit/conv_3d/b is not what its index says"):
        read_checkpoint(tiny, _of_floats)
    data.write_bytes(b"\1" + content[1:])
    with pytest.raises(CorruptData, match="unit/conv_3d/w is not what its index says"):
        read_checkpoint(tiny, _of_floats)
    data.unlink()
    with pytest.raises(MissingInput, match=r"tiny\.data-00000-of-00001: no such file"):
        read_checkpoint(tiny, _of_floats)
    with pytest.raises(MissingInput, match=r"absent\.index: no such file"):
        read_checkpoint(tiny.with_name("absent.index"))


def test_many_variables_in_blocks_and_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"scope_{number % 3}/unit_{number:03d}/w" for number in range(100)]
    variables = {name: rng.standard_normal((number % 4, 5), np.float32) for number, name in enumerate(names)}
    found = read_checkpoint(_write(tmp_path / "model.ckpt", variables, in_block=7, shards=3))
    assert list(found) == sorted(names)
    for name, value in variables.items():
        np.testing.assert_array_equal(found[name], value)


def test_what_is_not_read_here(tmp_path: Path) -> None:
    ones = {"w": np.ones(2, np.float32)}
    with pytest.raises(ConfigurationError, match="compressed"):
        read_checkpoint(_write(tmp_path / "snappy", ones, compression=1))
    with pytest.raises(ConfigurationError, match="big-endian"):
        read_checkpoint(_write(tmp_path / "big", ones, header=b"\x08\x01\x10\x01"))
    with pytest.raises(ConfigurationError, match="w is kept in slices"):
        read_checkpoint(_write(tmp_path / "slices", ones, more=b"\x3a\x00"))


def _write(
    prefix: Path,
    variables: Mapping[str, NDArray[np.float32]],
    *,
    in_block: int = 100,
    shards: int = 1,
    compression: int = 0,
    header: bytes | None = None,
    more: bytes = b"",
) -> Path:
    """A checkpoint of float32 variables; ``more`` is added to every entry."""
    data = [b""] * shards
    pairs = [(b"", header or b"\x08" + _varint(shards))]
    for number, name in enumerate(sorted(variables)):
        value, shard = variables[name], number % shards
        content = value.tobytes()
        shape = b"".join(_field(2, b"\x08" + _varint(size)) for size in value.shape)
        place = b"\x18" + _varint(shard) + b"\x20" + _varint(len(data[shard])) + b"\x28" + _varint(len(content))
        pairs.append((name.encode(), b"\x08\x01" + _field(2, shape) + place + b"\x35" + _checksum(content) + more))
        data[shard] += content
    table, blocks = b"", []
    for first in range(0, len(pairs), in_block):
        part = pairs[first : first + in_block]
        block = _block(part)
        blocks.append((part[-1][0], _varint(len(table)) + _varint(len(block))))
        table += _closed(block, compression)
    index = _block(blocks)
    footer = b"\0\0" + _varint(len(table)) + _varint(len(index))
    table += _closed(index, compression) + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    path = prefix.with_name(f"{prefix.name}.index")
    path.write_bytes(table)
    return path


def _block(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Pairs whose keys leave out what they share with the one before; every fourth key is whole."""
    content, before, restarts = b"", b"", []
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % 4 == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        content += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        before = key
    return content + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _closed(block: bytes, compression: int) -> bytes:
    block += bytes([compression])
    return block + _checksum(block)


def _checksum(content: bytes) -> bytes:
    checksum = google_crc32c.value(content)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    content = b""
    while value >= 0x80:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])
