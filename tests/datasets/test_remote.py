"""Shards behind URLs: fsspec's own file system in memory stands for a remote one, a server of this process for HTTP."""

import functools
import http.server
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from prvr.datasets.index import Index
from prvr.datasets.plan import batches
from prvr.datasets.remote import Url, default_cache, place_of
from prvr.datasets.stream import Collate, ShardReader, stream
from prvr.manifests.errors import CorruptData, MissingInput, PrvrError

URL = "memory://bucket/data"


@pytest.fixture
def remote(world: Any) -> Iterator[Any]:
    """The shards in memory; gives the file system."""
    system = fsspec.filesystem("memory")
    for path in world.data.iterdir():
        system.pipe_file(f"/bucket/data/{path.name}", path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


def _read(folder: Path | str, cache: Path) -> list[Any]:
    with ShardReader(folder, "train", cache=cache) as reader:
        return list(stream(reader, batches(range(len(reader)), 5), Collate(normalise=True, max_words=30)))


def test_the_batches_are_those_of_the_folder(world: Any, remote: Any, tmp_path: Path) -> None:
    ours, theirs = _read(URL, tmp_path / "cache"), _read(world.data, tmp_path / "none")
    assert len(ours) == 3
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.frames, other.frames) and torch.equal(one.words, other.words)
    assert not (tmp_path / "none").exists()


def test_shards_are_fetched_once_and_kept_by_their_hash(remote: Any, tmp_path: Path) -> None:
    (shard,) = Index.read(URL, "train").shards
    _read(URL + "/", tmp_path)
    assert [path.name for path in tmp_path.glob("*.tar")] == [f"{shard.sha256}.tar"]
    remote.rm("/bucket/data/train-000000.tar")
    assert len(_read(URL, tmp_path)) == 3


@pytest.mark.parametrize("how", ["cut", "changed", "longer"])
def test_what_is_not_the_shard_never_enters_the_cache(remote: Any, tmp_path: Path, how: str) -> None:
    path = "/bucket/data/train-000000.tar"
    good = remote.cat_file(path)
    bad = {"cut": good[: len(good) // 2], "changed": good[:700] + b"?" + good[701:], "longer": good + bytes(512)}[how]
    remote.pipe_file(path, bad)
    with pytest.raises(CorruptData, match=r"train-000000.tar: \d+ bytes came that are not the \d+ of the index"):
        _read(URL, tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".lock"]
    remote.pipe_file(path, good)
    assert len(_read(URL, tmp_path)) == 3


def test_a_connection_that_breaks_off(remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError("gone")

    monkeypatch.setattr(remote, "open", lambda path, mode: Breaking())
    with pytest.raises(PrvrError, match=r"train-000000.tar: could not be read .*gone.*; run again"):
        _read(URL, tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".lock"]


def test_a_cached_shard_that_was_cut_is_fetched_again_and_a_changed_one_is_found(remote: Any, tmp_path: Path) -> None:
    _read(URL, tmp_path)
    (path,) = tmp_path.glob("*.tar")
    good = path.read_bytes()
    path.write_bytes(good[:-10240])
    assert len(_read(URL, tmp_path)) == 3 and path.read_bytes() == good
    path.write_bytes(good[:700] + b"?" + good[701:])
    with pytest.raises(CorruptData, match="remove that file of the cache"):
        _read(URL, tmp_path)


def test_what_is_absent_or_stale(remote: Any, tmp_path: Path) -> None:
    assert Index.exists(URL, "test") and not Index.exists(URL, "dev")
    with pytest.raises(MissingInput, match="no shards of split 'dev'"):
        Index.read(URL, "dev")
    remote.rm("/bucket/data/train-000000.tar")
    with pytest.raises(CorruptData, match="named in the index, but absent"):
        _read(URL, tmp_path)
    remote.pipe_file("/bucket/data/split.json", b'{"digest": "another"}')
    with pytest.raises(CorruptData, match="stale"):
        Index.read(URL, "train")
    remote.pipe_file("/bucket/data/train.index.json", b"{")
    with pytest.raises(CorruptData, match="not JSON"):
        Index.read(URL, "train")


def test_a_protocol_that_nobody_installed() -> None:
    with pytest.raises(MissingInput, match="nonsense"):
        Index.read("nonsense://bucket", "train")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRVR_CACHE", str(tmp_path))
    assert default_cache() == tmp_path / "shards"
    place = place_of(URL)
    assert isinstance(place, Url) and place.cache == tmp_path / "shards"
    monkeypatch.delenv("PRVR_CACHE")
    assert default_cache() == Path.home() / ".cache" / "prvr" / "shards"


_FETCHING = """
import sys
from pathlib import Path
from prvr.datasets.index import Index
from prvr.datasets.remote import Url

folder, cache, log = sys.argv[1:]
fetch = Url._fetch

def logged(*arguments):
    with open(log, "a") as file:
        file.write("fetched\\n")
    fetch(*arguments)

Url._fetch = logged
print("ready", flush=True)
sys.stdin.readline()
place = Url(folder, Path(cache))
for shard in Index.read_from(place, "train").shards:
    assert place.local(shard).stat().st_size == shard.size
"""


def test_processes_that_want_the_same_shard_at_once(world: Any, tmp_path: Path) -> None:
    # fsspec's file system of this machine, as if it were a remote one.
    words = [world.data.as_uri(), str(tmp_path / "cache"), str(tmp_path / "log")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", _FETCHING, *words], **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "fetched\n", "one fetches, the others wait"
    (cached,) = (tmp_path / "cache").glob("*.tar")
    assert cached.read_bytes() == (world.data / "train-000000.tar").read_bytes()


class _Server(http.server.SimpleHTTPRequestHandler):
    """Breaks the connection off in the middle of a tar while ``cut``."""

    cut = False

    def copyfile(self, source: Any, outputfile: Any) -> None:
        whole = source.read()
        outputfile.write(whole[: len(whole) // 2] if self.cut and self.path.endswith(".tar") else whole)

    def log_message(self, *arguments: Any) -> None:
        pass


def test_over_http_whole_and_cut(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = functools.partial(_Server, directory=str(world.data))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(_Server, "cut", True)
        with pytest.raises(PrvrError, match=r"train-000000.tar: "):
            _read(url, tmp_path)
        assert not list(tmp_path.glob("*.tar"))
        monkeypatch.setattr(_Server, "cut", False)
        assert len(_read(url, tmp_path)) == 3
        with pytest.raises(MissingInput, match="no shards of split 'dev'"):
            Index.read(url, "dev")
        server.shutdown()
