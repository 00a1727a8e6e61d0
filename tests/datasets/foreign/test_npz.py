"""NumPy's files of features."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prvr.datasets.foreign import Array, npz
from prvr.manifests.errors import ConfigurationError, CorruptData

ROWS = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)


def _wrong(path: Path) -> str:
    with npz.read(path) as contents:
        assert not contents.entries
        (message,) = contents.wrong
        return message


def test_one_file_and_one_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.savez(tmp_path / "b.npz", features=ROWS)
    for path in sorted(tmp_path.iterdir()):
        assert npz.recognise(path)
        with npz.read(path) as contents:
            (entry,) = contents.entries
            assert (entry.id, entry.shape, str(entry.dtype)) == (path.stem, (7, 4), "float32") and not contents.wrong
            np.testing.assert_array_equal(entry.read(), ROWS)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_many_arrays_and_a_folder_of_both(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "many.npz", a=ROWS, b=ROWS[:2].astype(np.float16))
    with npz.read(tmp_path / "many.npz") as contents:
        assert [(entry.id, entry.shape) for entry in contents.entries] == [("a", (7, 4)), ("b", (2, 4))]
        np.testing.assert_array_equal(contents.entries[0].read(), ROWS)
    np.save(tmp_path / "x.npy", np.asfortranarray(ROWS))
    (tmp_path / "._x.npy").write_bytes(b"what a Mac leaves in archives")
    (tmp_path / "readme.txt").touch()
    assert npz.recognise(tmp_path)
    with npz.read(tmp_path) as contents:
        assert [entry.id for entry in contents.entries] == ["many/a", "many/b", "x"]
        assert contents.facts == {"files": 2} and not contents.wrong
        np.testing.assert_array_equal(contents.entries[2].read(), ROWS)


def test_objects_are_refused_and_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return open, (str(tmp_path / "executed"), "w")

    objects = np.array([Evil(), None], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", allow_pickle=True, x=objects)
    (tmp_path / "c.npy").write_bytes(pickle.dumps(Evil()))
    assert "Python objects; it needs pickle" in _wrong(tmp_path / "a.npy")
    assert "Python objects; it needs pickle" in _wrong(tmp_path / "b.npz")
    assert "not a NumPy array (a pickle" in _wrong(tmp_path / "c.npy")
    assert not (tmp_path / "executed").exists()


def test_files_of_another_size(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert _wrong(path) == "a.npy: 239 bytes, where an array [7, 4] of float32 takes 240"
    path.write_bytes(whole + b"more")
    assert "244 bytes" in _wrong(path)
    path.write_bytes(whole[:20])
    assert _wrong(path)
    path.write_bytes(b"")
    assert _wrong(path)


def test_a_truncated_archive_and_a_damaged_member(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    rows = np.repeat(ROWS, 500, axis=0)
    np.savez(path, x=rows, y=rows)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "a.npz: cut short, or not an archive" in _wrong(path)
    damaged = bytearray(whole)
    damaged[whole.index(rows.tobytes()) + rows.nbytes - 1] ^= 1
    path.write_bytes(damaged)
    with npz.read(path) as contents:
        with pytest.raises(CorruptData, match="CRC"):
            contents.entries[0].read()
        np.testing.assert_array_equal(contents.entries[1].read(), rows)


def test_the_real_files(shared: Path) -> None:
    with npz.read(shared / "data" / "features") as contents:
        assert {entry.id: entry.shape for entry in contents.entries} == {
            "bmt_women_long_jump_flow": (14, 1024),
            "bmt_women_long_jump_rgb": (14, 1024),
            "bmt_women_long_jump_vggish": (36, 128),
            "univtg_txt": (12, 512),
            "univtg_vid": (15, 512),
        }
        assert not contents.wrong and all(entry.read().shape == entry.shape for entry in contents.entries)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    arrays: dict[str, Array] = {"a.b": ROWS, "-é": ROWS[:1].astype(np.float64), "x" * 251: ROWS[:2]}
    npz.write(tmp_path / "f", arrays.items())
    with npz.read(tmp_path / "f") as contents:
        assert not contents.wrong and {entry.id for entry in contents.entries} == set(arrays)
        for entry in contents.entries:
            assert entry.dtype == np.float32
            np.testing.assert_array_equal(entry.read(), arrays[entry.id])


@pytest.mark.parametrize("id_", ["../x", "/abs", ".hidden", "a/b", "nul\0", "x" * 252, "é" * 126])
def test_an_id_that_no_file_can_have(tmp_path: Path, id_: str) -> None:
    with pytest.raises(ConfigurationError, match="no file can have that name") as refused:
        npz.write(tmp_path / "f", [(id_, ROWS)])
    assert repr(id_) in str(refused.value)
    assert not list((tmp_path / "f").iterdir())


def test_one_name_for_two_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="another id's file"):
        npz.write(tmp_path / "f", [("a", ROWS), ("a", ROWS)])
