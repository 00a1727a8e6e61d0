"""What the words of a command name."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from prvr.extract.find import find
from prvr.extract.sources import FrameFolder, VideoFile, VideoUrl
from prvr.manifests.errors import ConfigurationError, MissingInput
from prvr.manifests.split import Query, Split, Video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.mp4", "a.MKV", "sub/c.gif", "sub/notes.md", "sub/sound.mp3", ".hidden/x.mp4", ".y.mp4"):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).write_bytes(name.encode())
    return tmp_path / "videos"


def _ids(*arguments: object, id_from: str = "stem", frame_rate: float | None = None) -> list[str]:
    found = find([str(one) for one in arguments], id_from=id_from, frame_rate=frame_rate)
    return [source.id for source in found.sources]


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


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    for name in ("s01/one/1.jpg", "s01/one/2.jpg", "s01/two/1.png", "s01/two/notes.md", "v.1.5/1.JPG"):
        (tmp_path / "frames" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "frames" / name).write_bytes(name.encode())
    return tmp_path / "frames"


def test_with_a_rate_each_folder_of_pictures_is_a_video(frames: Path) -> None:
    found = find([str(frames)], frame_rate=3.0)
    assert [source.id for source in found.sources] == ["one", "two", "v.1.5"] and found.ignored == 1
    assert all(isinstance(source, FrameFolder) and source.rate == 3.0 for source in found.sources)
    assert _ids(frames, id_from="path", frame_rate=3.0) == ["s01/one", "s01/two", "v.1.5"]
    assert _ids(frames / "s01" / "*", frame_rate=3.0) == ["one", "two"]


def test_without_a_rate_pictures_are_ignored_and_said_to_be_there(frames: Path) -> None:
    with pytest.raises(MissingInput, match=r"5 other files, 4 of them pictures: --frame-rate"):
        find([str(frames)])


def test_a_frame_folders_fingerprint_is_of_its_pictures_and_rate(frames: Path) -> None:
    folder = frames / "s01" / "one"
    first = FrameFolder("one", folder, 3.0).fingerprint()
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    assert FrameFolder("one", folder, 3.0).fingerprint() == first != FrameFolder("one", folder, 5.0).fingerprint()
    (folder / "2.jpg").rename(folder / "0.jpg")
    assert FrameFolder("one", folder, 3.0).fingerprint() != first


@pytest.fixture
def bucket() -> Iterator[str]:
    """Files of a remote system: fsspec's own, in memory."""
    import fsspec

    system = fsspec.filesystem("memory")
    for name in ("/bucket/a.mp4", "/bucket/sub/b.webm", "/bucket/sub/notes.md"):
        system.pipe_file(name, name.encode())
    yield "memory://bucket"
    system.rm("/bucket", recursive=True)


def test_urls(bucket: str, tmp_path: Path) -> None:
    found = find([bucket])
    assert [source.id for source in found.sources] == ["a", "b"] and found.ignored == 1
    assert _ids(bucket, id_from="path") == ["a", "sub/b"]
    assert _ids(f"{bucket}/a.mp4") == ["a"] and _ids(f"{bucket}/sub/*.webm") == ["b"]
    (tmp_path / "list.txt").write_text(f"{bucket}/a.mp4\n{bucket}/sub/b.webm\n", encoding="utf-8")
    assert _ids(tmp_path / "list.txt") == ["a", "b"]


def test_a_remote_video_is_fetched_for_as_long_as_it_is_needed(bucket: str) -> None:
    (source,) = find([f"{bucket}/a.mp4"]).sources
    assert isinstance(source, VideoUrl)
    with source.fetched() as path:
        assert path.read_bytes() == b"/bucket/a.mp4" and path.suffix == ".mp4"
    assert not path.exists()


def test_a_remote_videos_fingerprint_changes_with_it(bucket: str) -> None:
    import fsspec

    (source,) = find([f"{bucket}/a.mp4"]).sources
    assert isinstance(source, VideoUrl)
    first = source.fingerprint()
    assert source.fingerprint() == first
    fsspec.filesystem("memory").pipe_file("/bucket/a.mp4", b"another")
    assert source.fingerprint() != first


@pytest.mark.parametrize("url", ["memory://absent/*.mp4", "memory://absent/", "memory://absent/v.mp4"])
def test_a_url_that_names_nothing(url: str) -> None:
    with pytest.raises(MissingInput):
        find([url])


def test_a_url_of_an_unknown_kind() -> None:
    with pytest.raises(MissingInput, match="nosuch"):
        find(["nosuch://x/y.mp4"])
