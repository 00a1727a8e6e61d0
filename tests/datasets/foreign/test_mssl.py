"""MS-SL's BigFile folders."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from prvr.datasets.foreign import mssl
from prvr.manifests.errors import ConfigurationError, CorruptData

VIDEOS = {"a": ["a_0", "a_1", "a_2"], "it's": ["it's_0"], 'say "b"': ['say"b"_0', 'say"b"_1']}
ROWS = np.arange(6 * 4, dtype="<f4").reshape(6, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three videos of 3, 1 and 2 rows, 4 wide."""
    path = tmp_path / "i3d"
    path.mkdir()
    ROWS.tofile(path / "feature.bin")
    (path / "shape.txt").write_text("6 4", encoding="utf-8")
    (path / "id.txt").write_text(" ".join(name for names in VIDEOS.values() for name in names) + "\n", encoding="utf-8")
    (path / "video2frames.txt").write_text(repr(VIDEOS), encoding="utf-8")
    return path


def _wrong(folder: Path) -> str:
    with mssl.read(folder) as contents:
        return "\n".join(contents.wrong)


def test_rows_by_video(folder: Path) -> None:
    assert mssl.recognise(folder)
    with mssl.read(folder) as contents:
        assert not contents.wrong and not contents.notes and contents.facts == {"feature.bin": {"rows": 6}}
        assert [(entry.id, entry.shape) for entry in contents.entries] == [
            ("a", (3, 4)), ("it's", (1, 4)), ('say "b"', (2, 4)),
        ]  # fmt: skip
        for entry, rows in zip(contents.entries, np.split(ROWS, [3, 4]), strict=True):
            np.testing.assert_array_equal(entry.read(), rows)


def test_rows_come_in_the_order_of_the_frames_and_another_order_is_noted(folder: Path) -> None:
    (folder / "video2frames.txt").write_text("{'a': ['a_0', 'a_2', 'a_1']}", encoding="utf-8")
    with mssl.read(folder) as contents:
        np.testing.assert_array_equal(contents.entries[0].read(), ROWS[[0, 2, 1]])
        assert contents.notes == (
            "the frames of 1 videos are not in the order of their numbers: a",
            "3 rows belong to no video",
        )


def test_the_golden_folder_holds_the_golden_videos(shared: Path) -> None:
    golden = shared / "golden" / "prvr"
    with mssl.read(golden / "layout/gold/FeatureData/i3d") as contents, np.load(golden / "raw_videos.npz") as raw:
        assert not contents.wrong and not contents.notes
        assert {entry.id for entry in contents.entries} == set(raw)
        for entry in contents.entries:
            np.testing.assert_array_equal(entry.read(), raw[entry.id])


def test_a_truncated_binary_gives_the_rows_that_are_left(folder: Path) -> None:
    (folder / "feature.bin").write_bytes(ROWS.tobytes()[:-4])
    with mssl.read(folder) as contents:
        assert contents.wrong == (
            "feature.bin: 92 bytes, where 6 rows of 4 float32 take 96",
            '1 videos have rows past the end of feature.bin: say "b"',
        )
        assert [entry.shape[0] for entry in contents.entries] == [3, 1, 1]
        np.testing.assert_array_equal(contents.entries[2].read(), ROWS[4:5])


def test_an_empty_binary(folder: Path) -> None:
    (folder / "feature.bin").write_bytes(b"")
    with mssl.read(folder) as contents:
        assert contents.entries[0].read().shape == (0, 4) and len(contents.wrong) == 2


def test_float64_in_the_binary_is_suspected(folder: Path) -> None:
    ROWS.astype("<f8").tofile(folder / "feature.bin")
    assert "perhaps float64" in _wrong(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("id.txt", "a_0 a_1", "id.txt: 2 names, where shape.txt says 6 rows"),
        ("id.txt", "a_0 a_1 a_1 a_1 b c", "1 names stand in it more than once: a_1"),
        ("video2frames.txt", "{'a': ['a_0', 'gone_1']}", "1 frames of video2frames.txt are not in id.txt: gone_1"),
        ("video2frames.txt", "{'a': ['a_0'], 'a': ['a_1']}", "a stands in it twice"),
    ],
)
def test_names_that_disagree(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    assert message in _wrong(folder)


@pytest.mark.parametrize("name", mssl.FILES)
def test_an_absent_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert mssl.recognise(folder)
    with pytest.raises(CorruptData, match=f"no {name}"), mssl.read(folder):
        pass


@pytest.mark.parametrize("text", ["", "6", "6 x", "6 0", "-1 4", "shape"])
def test_a_shape_that_is_none(folder: Path, text: str) -> None:
    (folder / "shape.txt").write_text(text, encoding="utf-8")
    with pytest.raises(CorruptData, match="where two numbers belong"), mssl.read(folder):
        pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        (" {'a': []} \n", {"a": []}),
        ("{'a': ['x'],}", {"a": ["x"]}),
        ("{u'a': [u'x', u'y',], \"b\":('z',)}", {"a": ["x", "y"], "b": ["z"]}),
        (repr({"a\\b\n'\"ü": ["\t\x00"]}), {"a\\b\n'\"ü": ["\t\x00"]}),
        (r"{'\d': ['x']}", {r"\d": ["x"]}),
    ],
)
def test_python_literals(tmp_path: Path, text: str, expected: dict[str, list[str]]) -> None:
    path = tmp_path / "v.txt"
    path.write_text(text, encoding="utf-8")
    assert dict(mssl.frames_of_videos(path)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{'a'}",
        "{'a': 'x'}",
        "{'a': ['x']",
        "{'a': ['x'}",
        "{'a': ['x'] 'b': ['y']}",
        "{'a': ['x']} more",
        "{'a': [1]}",
        r"{'\x': ['x']}",
        "__import__('os').system('touch executed')",
        "{'a': [open('executed', 'w')]}",
        "{'a': ['x'" + " " * 50_000 + "'y' " * 50_000 + "z]}",
    ],
)
def test_what_is_no_dict_of_names_is_neither_read_nor_run(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "v.txt"
    path.write_text(text, encoding="utf-8")
    started = time.process_time()
    with pytest.raises(CorruptData):
        list(mssl.frames_of_videos(path))
    assert time.process_time() - started < 2, "a damaged file takes for ever"
    assert list(tmp_path.iterdir()) == [path]


def test_recognised_by_two_of_its_files(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "id.txt").touch()
    assert not mssl.recognise(folder) and not mssl.recognise(folder / "id.txt")
    (folder / "feature.bin").touch()
    assert mssl.recognise(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    arrays = {"v_-4ws.u": ROWS[:2], "50%": ROWS[2:3], "50%25": ROWS[3:4], "é\u2028'": ROWS[4:].astype(np.float64)}
    mssl.write(tmp_path / "i3d", arrays.items())
    with mssl.read(tmp_path / "i3d") as contents:
        assert not contents.wrong and not contents.notes
        for entry, (id_, rows) in zip(contents.entries, arrays.items(), strict=True):
            assert entry.id == id_ and entry.dtype == np.float32
            np.testing.assert_array_equal(entry.read(), rows)
    assert (tmp_path / "i3d" / "id.txt").read_bytes().split() == [
        b"v_-4ws.u_0", b"v_-4ws.u_1", b"50%25_0", b"50%2525_0", b"%C3%A9%E2%80%A8'_0", b"%C3%A9%E2%80%A8'_1",
    ]  # fmt: skip
    assert (tmp_path / "i3d" / "shape.txt").read_text(encoding="ascii") == "6 4"


def test_two_widths_and_nothing_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="b: 3 wide, where the videos before are 4"):
        mssl.write(tmp_path / "a", [("a", ROWS), ("b", ROWS[:, :3])])
    with pytest.raises(ConfigurationError, match="no videos"):
        mssl.write(tmp_path / "b", [])
