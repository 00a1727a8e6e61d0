"""Weights: by name, by path, or random aloud."""

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from prvr.extract.weights import Published, Weights, local, read_state, resolve
from prvr.manifests.errors import ConfigurationError, MissingInput, PrvrError
from prvr.manifests.files import sha256_of


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address on this machine at which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_name_is_downloaded_once_and_its_hash_is_held_against_it(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    monkeypatch.setenv("PRVR_CACHE", str(tmp_path / "cache"))
    torch.save({"w": torch.ones(3)}, folder / "w.pth")
    digest = sha256_of(folder / "w.pth")
    known = {"net.v1": Published(f"{address}/w.pth", digest[:8], "ours")}
    weights = resolve("net.v1", known)
    assert weights.path is not None and weights.sha256({}) == digest
    (folder / "w.pth").unlink()
    assert resolve("net.v1", known) == weights, "the second time the network is not asked"
    torch.save({"w": torch.zeros(3)}, folder / "w.pth")
    with pytest.raises(PrvrError, match="hash"):
        resolve("other", {"other": Published(f"{address}/w.pth", digest[:8], "ours")})
    assert sorted(path.name for path in (tmp_path / "cache" / "weights").iterdir()) == [weights.path.name]


def test_a_download_whose_hash_is_not_known_says_so(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, address = served
    monkeypatch.setenv("PRVR_CACHE", str(tmp_path / "cache"))
    torch.save({"w": torch.ones(3)}, folder / "w.pth")
    with caplog.at_level("WARNING", logger="prvr"):
        weights = resolve("net.v1", {"net.v1": Published(f"{address}/w.pth", "", "ours")})
    assert weights.path is not None and weights.path.name == "net.v1.pth"
    assert "NOT VERIFIED" in caplog.text and sha256_of(folder / "w.pth") in caplog.text


def test_a_network_under_model_state(tmp_path: Path) -> None:
    torch.save({"model_state": {"w": torch.ones(3)}}, tmp_path / "w.pyth")
    assert torch.equal(read_state(tmp_path / "w.pyth")["w"], torch.ones(3))


def test_a_hub_that_cannot_be_reached_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PrvrError, match=r"cannot be fetched.*--weights"):
        resolve("nobody/nothing", {})
    with pytest.raises(ConfigurationError, match="neither a path"):
        resolve("not a name", {})


def test_random_is_explicit_and_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="prvr"):
        weights = local("random:7")
    assert weights is not None and (weights.seed, weights.path) == (7, None)
    assert "RANDOM" in caplog.text
    for text in ("random:", "random:x", "random:-1"):
        with pytest.raises(ConfigurationError, match="random:SEED"):
            local(text)


@pytest.mark.parametrize("text", ["./absent", "/absent", "absent.pth", "absent.pyth", "~/absent.safetensors"])
def test_a_path_that_is_not_there_is_no_name(text: str) -> None:
    with pytest.raises(MissingInput, match="no such file or folder"):
        local(text)


def test_the_hash_of_a_folder_is_of_what_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    weights = local(str(tmp_path))
    assert weights is not None
    first = weights.sha256({})
    (tmp_path / "README.md").write_text("x", encoding="utf-8")
    assert weights.sha256({}) == first
    (tmp_path / "config.json").write_text("{ }", encoding="utf-8")
    assert weights.sha256({}) != first


def test_a_file_that_executes_something_is_refused_unread(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "executed"), "w"))

    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    torch.save({"w": Evil()}, tmp_path / "evil2.pth")
    for name in ("evil.pth", "evil2.pth"):
        with pytest.raises(ConfigurationError, match="not a file of weights"):
            read_state(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def test_the_hash_of_a_tensorflow_checkpoint_is_of_its_numbers_too(tmp_path: Path) -> None:
    index, data = tmp_path / "model.ckpt.index", tmp_path / "model.ckpt.data-00000-of-00001"
    index.write_bytes(b"names")
    data.write_bytes(b"numbers")
    weights = Weights("x", index, None)
    first = weights.sha256({})
    data.write_bytes(b"other numbers")
    assert weights.sha256({}) != first
    (tmp_path / "model.ckpt-2.data-00000-of-00001").touch()
    data.write_bytes(b"numbers")
    assert weights.sha256({}) == first, "what belongs to another checkpoint does not count"
