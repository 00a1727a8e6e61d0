"""A folder of small videos."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def videos(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Six readable videos of 2 to 4 s, one without content, one text file."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for number in range(6):
        make_video(folder / f"v{number}.mp4", [100 * (n + number) for n in range(20 + 4 * number)])
    (folder / "broken.mp4").write_bytes(b"not a video")
    (folder / "notes.txt").touch()
    return folder
