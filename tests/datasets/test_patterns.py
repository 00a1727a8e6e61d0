"""Shards without an index: the same samples, only our members, and no end that is none."""

import io
import json
import pickle
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from prvr.datasets.patterns import batches, samples
from prvr.datasets.sample import key_of
from prvr.datasets.shards import Form, write_shards
from prvr.datasets.source import StoreSource
from prvr.datasets.stream import Collate, ShardReader
from prvr.manifests.errors import CorruptData, MissingInput


@pytest.fixture(scope="module")
def data(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training split in several tars."""
    folder = tmp_path_factory.mktemp("several")
    index = write_shards(
        folder, world.split, "train", StoreSource([world.videos], world.words), Form(shard_bytes=10500)
    )
    assert len(index.shards) == 4
    return folder


def _ids(pattern: str, **order: int) -> list[str]:
    return [sample.video.video_id for sample in samples(pattern, **order)]


IDS = [f"train.{number}" for number in range(12)]


@pytest.mark.parametrize(
    "pattern",
    [
        "{}/train-{{000000..000003}}.tar",
        "file://{}/train-{{000000..000003}}.tar",
        "pipe:cat {}/train-{{000000..000003}}.tar",
        "{0}/train-{{000000..000001}}.tar::{0}/train-{{000002..000003}}.tar",
    ],
)
def test_the_samples_are_those_of_the_index(data: Path, pattern: str) -> None:
    found = list(samples(pattern.format(data)))
    with ShardReader(data, "train") as reader:
        assert len(found) == len(reader)
        for position, sample in enumerate(found):
            assert sample.video == reader[position].video
            np.testing.assert_array_equal(sample.frames, reader[position].frames)
            np.testing.assert_array_equal(np.concatenate(sample.words), np.concatenate(reader[position].words))


def test_what_fsspec_opens(data: Path) -> None:
    system = fsspec.filesystem("memory")
    for path in data.glob("*.tar"):
        system.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    try:
        assert _ids("memory://bucket/train-{000000..000003}.tar") == IDS
    finally:
        system.rm("/bucket", recursive=True)


def test_batches_are_those_of_the_index(data: Path) -> None:
    collate = Collate(normalise=True, max_words=3)
    found = list(batches(samples(f"{data}/train-{{000000..000003}}.tar"), 5, collate))
    with ShardReader(data, "train") as reader:
        for first, batch in zip(range(0, 12, 5), found, strict=True):
            own = collate([reader[position] for position in range(first, min(first + 5, 12))])
            assert torch.equal(batch.frames, own.frames) and torch.equal(batch.words, own.words)


def test_the_order_is_a_function_of_seed_and_epoch(data: Path) -> None:
    pattern = f"{data}/train-{{000000..000003}}.tar"
    orders = {_key: _ids(pattern, seed=_key[0], epoch=_key[1], shuffle=6) for _key in [(0, 0), (0, 1), (1, 0)]}
    assert all(sorted(ids) == sorted(IDS) for ids in orders.values())
    assert len({tuple(ids) for ids in orders.values()}) == 3 and IDS not in orders.values()
    assert _ids(pattern, seed=0, epoch=1, shuffle=6) == orders[0, 1]


def test_every_cut_of_a_tar_is_found(data: Path, tmp_path: Path) -> None:
    good = (data / "train-000000.tar").read_bytes()
    with tarfile.open(data / "train-000000.tar") as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + -(-last.size // 512) * 512
    cut = tmp_path / "cut.tar"
    for size in range(0, end + 1, 256):
        cut.write_bytes(good[:size])
        with pytest.raises(CorruptData):
            _ids(str(cut))
    cut.write_bytes(good[: end + 512])
    assert _ids(str(cut)) == _ids(str(data / "train-000000.tar")), "with its end of archive all members are there"


def test_every_flipped_byte_of_a_later_header_is_found_or_harmless(data: Path, tmp_path: Path) -> None:
    good = (data / "train-000000.tar").read_bytes()
    ids = _ids(str(data / "train-000000.tar"))
    with tarfile.open(data / "train-000000.tar") as tar:
        header = tar.getmembers()[2].offset
    bad = tmp_path / "bad.tar"
    harmless = 0
    for position in range(512):
        bad.write_bytes(
            good[: header + position] + bytes([good[header + position] ^ 1]) + good[header + position + 1 :]
        )
        try:
            assert _ids(str(bad)) == ids, "never a shorter epoch"
            harmless += 1
        except CorruptData:
            pass
    assert harmless <= 2, "bytes of the checksum's own field that say the same number"


def _tar(path: Path, *files: tuple[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return str(path)


class _Executed:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _execute, ("x",)


_executions: list[str] = []


def _execute(what: str) -> None:
    _executions.append(what)


@pytest.fixture
def parts(data: Path) -> dict[str, bytes]:
    """The files of one tar, by name."""
    with tarfile.open(data / "train-000000.tar") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["train%2E0.pyd", "train%2E0.pickle", "train%2E0.cls", "other.jpg", "README", "a.json.gz"]
)
def test_members_of_other_kinds_are_refused_by_name_and_not_executed(
    parts: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    url = _tar(tmp_path / "x.tar", *parts.items(), (name, pickle.dumps(_Executed())))
    with pytest.raises(CorruptData, match=rf"x.tar: '{name}' is no .safetensors or .json file"):
        _ids(url)
    assert not _executions


def test_links_are_refused_and_folders_are_not_members(parts: dict[str, bytes], tmp_path: Path) -> None:
    folder = tarfile.TarInfo("d")
    folder.type = tarfile.DIRTYPE
    link = tarfile.TarInfo("d/x.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for last, wrong in ((folder, False), (link, True)):
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            for name, content in parts.items():
                member = tarfile.TarInfo(f"./{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            tar.addfile(last)
        if wrong:
            with pytest.raises(CorruptData, match=r"'d/x.json' is no"):
                _ids(str(tmp_path / "x.tar"))
        else:
            assert len(_ids(str(tmp_path / "x.tar"))) == len(parts) // 2


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_sample_that_lacks_a_file(parts: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    for which in range(len(parts) // 2):
        gone = f"train%2E{which}.{kind}"
        url = _tar(tmp_path / "x.tar", *((name, content) for name, content in parts.items() if name != gone))
        with pytest.raises(CorruptData, match=rf"train%2E{which} has no .{kind}"):
            _ids(url)


def test_a_sample_under_another_key_twice_or_not_one_of_ours(parts: dict[str, bytes], tmp_path: Path) -> None:
    line, tensors = parts["train%2E0.json"], parts["train%2E0.safetensors"]
    with pytest.raises(CorruptData, match=r"other is of video 'train.0'"):
        _ids(_tar(tmp_path / "x.tar", ("other.json", line), ("other.safetensors", tensors)))
    with pytest.raises(CorruptData, match="duplicate"):
        _ids(_tar(tmp_path / "x.tar", ("train%2E0.json", line), ("train%2E0.json", line)))
    for bad in (b"", b"\x80\x04", tensors[:-1], tensors + b"x", b"\x00" * len(tensors)):
        with pytest.raises(CorruptData, match="train%2E0 is not a sample of these shards"):
            _ids(_tar(tmp_path / "x.tar", ("train%2E0.json", line), ("train%2E0.safetensors", bad)))
    for text in (b"", b"[]", b"{}", b"\xff"):
        with pytest.raises(CorruptData, match="train%2E0 is not a sample of these shards"):
            _ids(_tar(tmp_path / "x.tar", ("train%2E0.json", text), ("train%2E0.safetensors", tensors)))


def test_what_cannot_be_opened(data: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"none.tar"):
        _ids(str(tmp_path / "none.tar"))
    with pytest.raises(MissingInput, match="Protocol not known: nonsense"):
        _ids("nonsense://bucket/a.tar")
    with pytest.raises(CorruptData, match="cut"):
        _ids("pipe:true")
    with pytest.raises(CorruptData, match="exit 3"):
        _ids(f"pipe:cat {data}/train-000000.tar; exit 3")
    (tmp_path / "text.tar").write_text("no tar at all", encoding="utf-8")
    with pytest.raises(CorruptData):
        _ids(str(tmp_path / "text.tar"))


def test_any_id_goes_through(parts: dict[str, bytes], tmp_path: Path) -> None:
    ids = ["a.b", "a.c", "../x", "/abs", "-4wsuPCjDBc_5_15", "vidéo", "vide\u0301o", "x" * 300]
    files = []
    for id_ in ids:
        line = json.loads(parts["train%2E0.json"]) | {"video_id": id_}
        files += [
            (f"{key_of(id_)}.json", json.dumps(line).encode()),
            (f"{key_of(id_)}.safetensors", parts["train%2E0.safetensors"]),
        ]
    assert _ids(_tar(tmp_path / "x.tar", *files)) == ids


def test_a_compressed_tar_and_one_that_is_cut(data: Path, tmp_path: Path) -> None:
    packed = tmp_path / "x.tar.gz"
    packed.write_bytes(
        subprocess.run(["gzip", "-c", data / "train-000000.tar"], check=True, capture_output=True).stdout
    )
    assert _ids(str(packed)) == _ids(str(data / "train-000000.tar"))
    packed.write_bytes(packed.read_bytes()[:-2000])
    with pytest.raises(CorruptData):
        _ids(str(packed))


def test_a_stream_that_is_left_early_leaves_nothing_open(data: Path) -> None:
    found = samples(f"pipe:cat {data}/train-000000.tar; sleep 0.1")
    next(found)
    found.close()  # type: ignore[attr-defined]
