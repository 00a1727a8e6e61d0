"""Damage to indexed shards: always found, never a shorter epoch."""

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prvr.datasets.index import Index
from prvr.datasets.plan import batches, epoch_order
from prvr.datasets.shards import Form, write_shards
from prvr.datasets.source import StoreSource
from prvr.datasets.store import Features, FeatureSpec, FeatureStore
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.errors import CorruptData, PrvrError
from prvr.manifests.files import read_json, write_json

SMALL = Form(shard_bytes=10500)


@pytest.fixture
def data(world: Any, tmp_path: Path) -> Path:
    """The training split in four shards, to be damaged."""
    folder = tmp_path / "data"
    world.split.write(folder)
    assert len(write_shards(folder, world.split, "train", StoreSource([world.videos], world.words), SMALL).shards) == 4
    return folder


def _epoch(folder: Path) -> int:
    """How many videos an epoch of training has."""
    with ShardReader(folder, "train") as reader:
        plan = batches(epoch_order(reader.shard_sizes(), seed=0, epoch=0), 5)
        return sum(len(batch.frames) for batch in stream(reader, plan, Collate(normalise=True, max_words=30), ahead=0))


def test_every_cut_of_a_shard_is_found(data: Path) -> None:
    shard = data / "train-000002.tar"
    good = shard.read_bytes()
    for size in range(0, len(good), 256):
        shard.write_bytes(good[:size])
        with pytest.raises(CorruptData, match=rf"train-000002.tar: {size} bytes, the index says {len(good)}"):
            _epoch(data)
    shard.write_bytes(good)
    assert _epoch(data) == 12


def test_every_cut_under_an_open_reader_is_found(data: Path) -> None:
    shard = data / "train-000002.tar"
    good = shard.read_bytes()
    for size in range(0, len(good), 256):
        shard.write_bytes(good)
        with ShardReader(data, "train") as reader:
            first = reader.index.video_ids.index(reader.index.shards[2].members[0].video_id)
            reader[first]
            shard.write_bytes(good[:size])
            with pytest.raises(CorruptData):
                list(reader.lent(range(first, first + len(reader.index.shards[2].members))))


def test_every_flipped_byte_of_every_header_is_found(data: Path) -> None:
    with tarfile.open(data / "train-000001.tar") as tar:
        headers = [member.offset for member in tar]
    assert len(headers) >= 6
    _flipped(data, [header + byte for header in headers for byte in range(512)], 1)


def test_every_other_byte_is_covered_too(data: Path) -> None:
    size = (data / "train-000001.tar").stat().st_size
    _flipped(data, [*range(0, size, 97), size - 1], 128)


def _flipped(folder: Path, positions: list[int], bit: int) -> None:
    """See that the sample that a byte of the second shard belongs to is refused, for each byte."""
    path = folder / "train-000001.tar"
    good = path.read_bytes()
    with ShardReader(folder, "train") as reader, path.open("r+b", buffering=0) as file:
        first = reader.shard_sizes()[0]
        extents = reader.index.shards[1].extents()
        for position in positions:
            owner = next(number for number, (start, end) in enumerate(extents) if start <= position < end)
            file.seek(position)
            file.write(bytes([good[position] ^ bit]))
            with pytest.raises(CorruptData, match=r"train-000001.tar, '.*': its bytes changed"):
                reader[first + owner]
            file.seek(position)
            file.write(good[position : position + 1])
            reader.close()
            reader[first + owner]
            reader.close()


def test_a_shard_that_is_absent_renamed_or_another(data: Path) -> None:
    one, other = data / "train-000001.tar", data / "train-000002.tar"
    good = one.read_bytes()
    one.unlink()
    with pytest.raises(CorruptData, match=r"train-000001.tar: named in the index, but absent"):
        _epoch(data)
    one.write_bytes(bytes(len(good)))
    with pytest.raises(CorruptData, match=r"train-000001.tar, '.*': its bytes changed"):
        _epoch(data)
    one.write_bytes(other.read_bytes())
    with pytest.raises(CorruptData, match=r"train-000001.tar"):
        _epoch(data)
    one.write_bytes(good)
    assert _epoch(data) == 12


def test_a_shard_that_goes_while_an_epoch_runs(data: Path) -> None:
    with ShardReader(data, "train") as reader:
        (data / "train-000003.tar").unlink()
        with pytest.raises(CorruptData, match=r"train-000003.tar: named in the index, but absent"):
            list(stream(reader, [list(range(12))], Collate(normalise=True, max_words=30)))


def test_an_index_of_older_shards_of_the_same_sizes(data: Path, world: Any, tmp_path: Path, spec: Any) -> None:
    index = (data / "train.index.json").read_bytes()
    again = write_shards(data, world.split, "train", _negated(world, tmp_path, spec), SMALL)
    assert [shard.size for shard in again.shards] == [shard["size"] for shard in json.loads(index)["shards"]]
    (data / "train.index.json").write_bytes(index)
    with pytest.raises(CorruptData, match=r"its bytes changed"):
        _epoch(data)


@pytest.mark.parametrize("field", ["frames", "crc32c", "tensors", "line"])
def test_an_index_that_lacks_or_misstates_a_field(data: Path, field: str) -> None:
    path = data / "train.index.json"
    values = read_json(path)
    member = values["shards"][1]["members"][0]
    good = member[field]
    member[field] = [good[0] + 512, good[1]] if isinstance(good, list) else good + 1
    write_json(path, values)
    with pytest.raises(CorruptData):
        _epoch(data)
    del member[field]
    write_json(path, values)
    with pytest.raises(CorruptData, match=field):
        _epoch(data)


def _negated(world: Any, folder: Path, spec: Callable[..., FeatureSpec]) -> StoreSource:
    """The same videos with other features of the same shapes."""
    store = FeatureStore.open(world.videos)
    path = folder / "negated.zarr"
    FeatureStore.create(path, spec("video", 8, recipe_digest="2" * 64)).commit(
        [Features(id_, "made", -store[id_], store.times(id_)) for id_ in store.ids]
    )
    return StoreSource([path], world.words)


@pytest.mark.parametrize("late", ["tars", "index"])
def test_a_second_writer_between_the_tars_and_the_index(
    data: Path, world: Any, tmp_path: Path, spec: Any, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    one, other = StoreSource([world.videos], world.words), _negated(world, tmp_path, spec)
    write = Index.write

    def interrupted(index: Index, folder: Path) -> Index:
        monkeypatch.setattr(Index, "write", write)
        write_shards(folder, world.split, "train", one, SMALL)
        if late == "index":
            (folder / "train.index.json").unlink()
        return write(index, folder)

    monkeypatch.setattr(Index, "write", interrupted)
    with pytest.raises(CorruptData, match="not what was just written; does another process write"):
        write_shards(data, world.split, "train", other, SMALL)
    if late == "tars":
        assert _epoch(data) == 12, "what the second writer wrote is whole"
    else:
        with pytest.raises(PrvrError, match="no shards of split 'train'"):
            _epoch(data)
    write_shards(data, world.split, "train", other, SMALL)
    assert _epoch(data) == 12


_WRITING = """
import sys
from pathlib import Path
from prvr.datasets.shards import Form, write_shards
from prvr.datasets.source import StoreSource
from prvr.manifests.errors import CorruptData
from prvr.manifests.split import Split

folder, videos, words = map(Path, sys.argv[1:])
split = Split.read(folder)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(6):
    try:
        write_shards(folder, split, "train", StoreSource([videos], words), Form(shard_bytes=9000 + 1500 * (turn % 2)))
    except CorruptData as error:
        print(error)
    except FileNotFoundError as error:
        print(error)
"""


def test_two_processes_that_write_the_same_shards_at_once(data: Path, world: Any, tmp_path: Path, spec: Any) -> None:
    _negated(world, tmp_path, spec)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITING, str(data), str(videos), str(world.words)], **pipes)  # type: ignore[call-overload]
        for videos in (world.videos, tmp_path / "negated.zarr")
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    store = FeatureStore.open(world.videos)
    try:
        with ShardReader(data, "train") as reader:
            signs = set()
            for position, video_id in enumerate(reader.index.video_ids):
                frames = reader[position].frames
                np.testing.assert_array_equal(np.abs(frames), np.abs(store[video_id]))
                signs.add(bool(np.array_equal(frames, store[video_id])))
            assert len(reader) == 12 and len(signs) == 1, "one writer's shards, whole"
    except PrvrError:
        pass  # The reader says so.
    write_shards(data, world.split, "train", StoreSource([world.videos], world.words), SMALL)
    assert _epoch(data) == 12
