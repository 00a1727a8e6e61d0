"""What an editable install hides: a folder that is missing from the wheel."""

import tomllib
from pathlib import Path


def test_every_folder_with_code_is_packaged(root: Path) -> None:
    packaged = set(
        tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    )
    top = ("manifests", "datasets", "extract", "train")
    found = {
        ".".join(("prvr", *file.parent.relative_to(root).parts)) for one in top for file in (root / one).rglob("*.py")
    }
    found |= {
        ".".join(("prvr", *file.parent.relative_to(root).parts)) for one in top for file in (root / one).rglob("*.toml")
    }
    assert found == packaged


def test_versions_of_every_dependency_are_constrained(root: Path) -> None:
    import re

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {re.split(r"[^A-Za-z0-9-]", line)[0].lower() for line in wanted} - {"prvr"}
    pinned = {line.split("==")[0].lower() for line in (root / "constraints.txt").read_text(encoding="utf-8").split()}
    assert names <= pinned
