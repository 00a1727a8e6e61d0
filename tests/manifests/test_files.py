"""Files are whole or absent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prvr.manifests.files import alive, aside_of, digest_of, sha256_of, write_text, written_aside


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_text(path, "old")
    with pytest.raises(RuntimeError), written_aside(path) as aside:
        aside.write_text("half", encoding="utf-8")
        raise RuntimeError
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_at_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "x"
    script = (
        "import os, sys, pathlib\nfrom prvr.manifests.files import written_aside\n"
        "with written_aside(pathlib.Path(sys.argv[1])) as aside:\n"
        "    aside.write_text('half')\n    os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1 and not path.exists()
    other = aside_of(path)
    other.touch()
    write_text(path, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, other]), "what a living process is writing stays"


def test_digests() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}) != digest_of({"a": 1, "b": [3]})


def test_sha256_of_a_known_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_of(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_dead_process_that_nobody_has_noticed_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert alive(child.pid) and alive(os.getpid())
    child.kill()
    deadline = time.monotonic() + 10
    while alive(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child.pid), "it is a zombie until wait() is called"
    child.wait()
    assert not alive(child.pid)
