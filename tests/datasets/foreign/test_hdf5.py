"""HDF5 files of features."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from prvr.datasets.foreign import hdf5
from prvr.manifests.errors import ConfigurationError, CorruptData


def _file(path: Path, **arrays: object) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def _rows(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def test_a_data_set_a_video(tmp_path: Path) -> None:
    path = _file(tmp_path / "x.h5", a=_rows(3), b=_rows(5))
    assert hdf5.recognise(path)
    with hdf5.read(path) as contents:
        assert [(entry.id, entry.shape, str(entry.dtype)) for entry in contents.entries] == [
            ("a", (3, 4), "float32"), ("b", (5, 4), "float32"),
        ]  # fmt: skip
        np.testing.assert_array_equal(contents.entries[1].read(), _rows(5))
        assert not contents.wrong


def test_a_group_a_video_as_in_activitynets_c3d(tmp_path: Path) -> None:
    with hdf5.read(_file(tmp_path / "x.h5", **{"v_1/c3d": _rows(3), "v_2/c3d": _rows(2)})) as contents:
        assert [entry.id for entry in contents.entries] == ["v_1", "v_2"]
    with hdf5.read(_file(tmp_path / "y.h5", **{"v_1/c3d": _rows(3), "v_1/clip": _rows(2)})) as contents:
        assert [entry.id for entry in contents.entries] == ["v_1/c3d", "v_1/clip"]


@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_a_data_set_a_frame_in_the_order_of_the_numbers(tmp_path: Path, shape: tuple[int, ...]) -> None:
    long = {f"show_s01_clip_00_{number}": row.reshape(shape) for number, row in enumerate(_rows(12))}
    with hdf5.read(_file(tmp_path / "x.h5", **long, b_0=_rows(1).reshape(shape), b_1=_rows(1))) as contents:
        assert [(entry.id, entry.shape) for entry in contents.entries] == [("b", (2, 4)), ("show_s01_clip_00", (12, 4))]
        np.testing.assert_array_equal(contents.entries[1].read(), _rows(12))
        assert not contents.wrong


def test_lost_frames(tmp_path: Path) -> None:
    frames = {f"a_{number}": row for number, row in enumerate(_rows(12)) if number != 7}
    with hdf5.read(_file(tmp_path / "x.h5", **frames)) as contents:
        assert contents.wrong == ("1 videos lack frames between 0 and their last: a",)


def test_video_ids_that_end_in_numbers_are_no_frames(tmp_path: Path) -> None:
    many = {"castle_clip_00": _rows(3), "castle_clip_01": _rows(2)}
    with hdf5.read(_file(tmp_path / "x.h5", **many)) as contents:
        assert [entry.id for entry in contents.entries] == list(many)
    one = {"msvd_5_15": _rows(1)[0], "msvd_20_24": _rows(1)[0]}
    with hdf5.read(_file(tmp_path / "y.h5", **one)) as contents:
        assert {entry.id for entry in contents.entries} == set(one)


def test_bytes_that_were_never_written_are_not_zeros(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["good"] = _rows(3)
        file.create_dataset("late", (3, 4), "f4")
        chunked = file.create_dataset("part", (6, 4), "f4", chunks=(2, 4))
        chunked[:2] = 1
        file.create_dataset("empty", (0, 4), "f4")
    with hdf5.read(tmp_path / "x.h5") as contents:
        assert contents.wrong == ("2 data sets were never written whole, and read as zeros: late, part",)


@pytest.mark.parametrize("keep", [0, 5, 700, -1])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = _file(tmp_path / "x.h5", a=_rows(300), b=_rows(5))
    path.write_bytes(path.read_bytes()[:keep])
    assert hdf5.recognise(path)
    with pytest.raises(CorruptData, match="cut short, or not HDF5"), hdf5.read(path):
        pass


def test_recognised_by_its_first_bytes_too(tmp_path: Path) -> None:
    assert hdf5.recognise(_file(tmp_path / "features", a=_rows(3)))
    (tmp_path / "y.txt").write_text("text", encoding="utf-8")
    assert not hdf5.recognise(tmp_path / "y.txt") and not hdf5.recognise(tmp_path)


def test_the_golden_pair_of_amdnet(shared: Path) -> None:
    golden = shared / "golden" / "prvr"
    path = golden / "layout/gold/FeatureData/new_clip_vit_32_gold_vid_features.hdf5"
    with hdf5.read(path) as contents, np.load(golden / "raw_videos.npz") as raw:
        assert contents.facts["captions"] == {
            "in": "clip_ViT_B_32_gold_query_feat.hdf5", "count": 30, "of videos": 12,
        }  # fmt: skip
        assert not contents.wrong
        for entry in contents.entries:
            np.testing.assert_array_equal(entry.read(), raw[entry.id])


def test_a_pair_of_which_one_half_is_of_other_videos(tmp_path: Path) -> None:
    for folder in ("FeatureData", "TextData"):
        (tmp_path / folder).mkdir()
    path = _file(tmp_path / "FeatureData/new_clip_vit_32_x_vid_features.hdf5", a=_rows(3))
    captions = _file(
        tmp_path / "TextData/clip_ViT_B_32_x_query_feat.hdf5", **{"a#enc#0": _rows(1)[0], "b#enc#0": _rows(1)[0]}
    )
    with hdf5.read(path) as contents:
        assert contents.notes == (f"{captions.name} has captions of 1 videos not here: b",)
    captions.write_bytes(captions.read_bytes()[:100])
    with hdf5.read(path) as contents:
        assert len(contents.wrong) == 1


def test_the_golden_captions(shared: Path) -> None:
    folder = shared / "golden" / "prvr" / "layout/gold/TextData"
    with hdf5.read(folder / "roberta_gold_query_feat.hdf5") as words:
        assert len(words.entries) == 30 and all(entry.of_caption and len(entry.shape) == 2 for entry in words.entries)
    with hdf5.read(folder / "clip_ViT_B_32_gold_query_feat.hdf5") as sentences:
        assert {entry.shape for entry in sentences.entries} == {(48,)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    arrays = {
        "a.b": _rows(3),
        "\u00e9": _rows(1),
        "e\u0301": _rows(2).astype(np.float64),
        "..": _rows(2),
        "v#enc#0": _rows(4),
    }
    hdf5.write(tmp_path / "i3d" / "feature.hdf5", arrays.items())
    with hdf5.read(tmp_path / "i3d" / "feature.hdf5") as contents:
        assert not contents.wrong and {entry.id for entry in contents.entries} == set(arrays)
        for entry in contents.entries:
            assert entry.dtype == np.float32
            np.testing.assert_array_equal(entry.read(), arrays[entry.id].astype(np.float32))


@pytest.mark.parametrize("id_", ["../x", "/abs", "a/b", ".", "nul\0"])
def test_an_id_that_hdf5_takes_for_a_path(tmp_path: Path, id_: str) -> None:
    with pytest.raises(ConfigurationError, match="HDF5 takes it for a path") as refused:
        hdf5.write(tmp_path / "x.h5", [(id_, _rows(2))])
    assert repr(id_) in str(refused.value)


def test_words_are_not_cut_to_amdnets_one_vector(tmp_path: Path) -> None:
    path = hdf5.words(tmp_path / "gold", hdf5.AMDNET)
    hdf5.write(path, [("a#enc#0", _rows(1))])
    with h5py.File(path, "r") as file:
        assert file["a#enc#0"].shape == (4,)
    with pytest.raises(ConfigurationError, match="'a#enc#0': 3 rows, where AMDNet reads one vector"):
        hdf5.write(path, [("a#enc#0", _rows(3))])


def test_a_damaged_array_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=_rows(3))
        file.create_dataset("b", data=_rows(500), chunks=(100, 4), fletcher32=True)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(_rows(500)[450].tobytes())] ^= 1
    path.write_bytes(damaged)
    with hdf5.read(path) as contents:
        np.testing.assert_array_equal(contents.entries[0].read(), _rows(3))
        with pytest.raises(CorruptData, match=r"x\.h5: b: "):
            contents.entries[1].read()
