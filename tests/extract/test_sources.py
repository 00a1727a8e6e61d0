"""What the words of a command name."""

import io
from pathlib import Path

import pytest

from prvr.extract.sources import VideoFile, find
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.split import Query, Split, Video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.mp4", "a.MKV", "sub/c.gif", "sub/notes.md", "sub/sound.mp3", ".hidden/x.mp4", ".y.mp4"):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).write_bytes(name.encode())
    return tmp_path / "videos"


def _ids(*arguments: object, id_from: str = "stem") -> list[str]:
    return [source.id for source in find([str(one) for one in arguments], id_from=id_from).sources]


def test_a_folder_is_searched_to_the_bottom_and_the_rest_is_counted(folder: Path) -> None:
    found = find([str(folder)])
    assert [source.id for source in found.sources] == ["a", "b", "c"]
    assert (found.ignored, found.stream) == (2, "video")


def test_files_globs_and_lists(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ids(folder / "b.mp4") == ["b"]
    assert _ids(folder / "*.mp4") == ["b"]
    assert _ids(str(folder / "**" / "*.gif")) == ["c"]
    (tmp_path / "list.txt").write_text(f"{folder}/b.mp4\n\n{folder}/sub/c.gif\n", encoding="utf-8")
    assert _ids(tmp_path / "list.txt") == ["b", "c"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{folder}/a.MKV\n"))
    assert _ids("-") == ["a"]


def test_a_file_named_twice_is_one_source(folder: Path) -> None:
    assert _ids(folder, folder / "b.mp4") == ["a", "b", "c"]


def test_two_files_with_one_stem_are_refused_by_both_names(folder: Path) -> None:
    (folder / "sub" / "b.avi").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"b\.mp4 and .*b\.avi would both be 'b'; use --id-from path"):
        _ids(folder)
    assert _ids(folder, id_from="path") == ["a", "b", "sub/b", "sub/c"]


@pytest.mark.parametrize("argument", ["absent", "absent/*.mp4", "absent.mp4"])
def test_nothing_there(argument: str, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no such file or folder"):
        _ids(tmp_path / argument)


def test_a_folder_without_videos(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    with pytest.raises(MissingInput, match=r"no video there \(1 other files\)"):
        _ids(tmp_path)


def test_a_list_names_its_bad_line(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("\nnowhere.mp4\n", encoding="utf-8")
    with pytest.raises(MissingInput, match=r"line 2: nowhere\.mp4"):
        _ids(tmp_path / "l.txt")


def test_a_split_folder_is_its_captions(tmp_path: Path, folder: Path) -> None:
    videos = tuple(Video(id_, None, (Query(f"{id_}#0", "x"),)) for id_ in "ab")
    Split("own", "published", {"train": videos, "test": (*videos[:1], Video("silent", None, ()))}).write(tmp_path / "s")
    found = find([str(tmp_path / "s")])
    assert ([source.id for source in found.sources], found.stream, found.dataset) == (["a", "b"], "text", "own")
    with pytest.raises(ConfigurationError, match="one split folder"):
        find([str(tmp_path / "s"), str(folder)])


def test_a_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    path.write_bytes(b"one")
    first = VideoFile("v", path).fingerprint()
    path.write_bytes(b"two")
    assert VideoFile("v", path).fingerprint() != first == first
    path.write_bytes(b"one")
    assert VideoFile("v", path).fingerprint() == first
