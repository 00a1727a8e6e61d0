"""The file is the registration: contract over every folder of plug-ins."""

import pytest

from prvr.manifests import registry
from prvr.manifests.errors import UnknownName

FOLDERS = {
    "prvr.datasets.corpora": "shapes",
    "prvr.extract.backbones": "resnet",
    "prvr.extract.decoders": "pyav",
    "prvr.extract.engines": "local",
    "prvr.train.models": "ms-sl",
    "prvr.train.objectives": "ranking",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_loads(folder: str) -> None:
    assert FOLDERS[folder] in registry.names(folder)
    for name in registry.names(folder):
        module = registry.load(folder, name, kind="entry")
        assert module.__doc__, f"{name} has no header"


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    with pytest.raises(UnknownName, match="unknown model 'mssl': did you mean 'ms-sl'"):
        registry.load("prvr.train.models", "mssl", kind="model")


@pytest.mark.parametrize(("folder", "name"), [("prvr.extract.recipes", "resnet"), ("prvr.train.presets", "ms-sl.tvr")])
def test_data_files_are_names_too(folder: str, name: str) -> None:
    assert name in registry.data_names(folder)
    assert registry.data(folder, name, kind="file").startswith("#")
