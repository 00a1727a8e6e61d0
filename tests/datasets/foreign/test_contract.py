"""What every layout keeps."""

from pathlib import Path

import pytest

from prvr.datasets import foreign
from prvr.manifests.errors import UnknownName


@pytest.mark.parametrize("name", foreign.names())
def test_a_layout_has_its_functions_and_knows_what_is_not_its_own(name: str, tmp_path: Path) -> None:
    layout = foreign.load(name)
    assert layout.TITLE and layout.__doc__
    (tmp_path / "notes.txt").write_text("nothing of this kind", encoding="utf-8")
    for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "absent"):
        assert not layout.recognise(path)


def test_layouts_are_found_by_name_and_by_content(shared: Path) -> None:
    features = shared / "golden" / "prvr" / "layout" / "gold" / "FeatureData"
    assert foreign.layout_of(features / "i3d") is foreign.load("mssl")
    assert foreign.layout_of(features / "new_clip_vit_32_gold_vid_features.hdf5") is foreign.load("hdf5")
    assert foreign.layout_of(shared / "data" / "features") is foreign.load("npz")
    assert foreign.layout_of(shared) is None
    with pytest.raises(UnknownName, match="did you mean 'mssl'"):
        foreign.load("msl")


def test_a_list_for_a_message() -> None:
    assert foreign.some(["a", "b"]) == "a, b"
    assert foreign.some([str(number) for number in range(5)]) == "0, 1, 2 and 2 more"
