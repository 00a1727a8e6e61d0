"""``docs/methods.md`` is what ``docs/methods.py`` writes of the code, and its links lead where they say."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def methods(root: Path) -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("methods", root / "docs/methods.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says(methods: ModuleType) -> None:
    written = methods.PAGE.read_text(encoding="utf-8")
    assert written == methods.page(), f"docs/methods.md is out of date: {methods.COMMAND}"


def test_every_equation_has_a_line(methods: ModuleType) -> None:
    assert methods.missing(methods.mentions()) == []
    assert {paper.name: len(paper.equations) for paper in methods.PAPERS} == {
        "MS-SL": 11, "GMMFormer": 0, "GMMFormer v2": 0, "AMDNet": 10, "Ren et al.": 8, "v1": 14, "RAL": 13,
    }  # fmt: skip


def test_links_lead_to_what_they_name(methods: ModuleType, root: Path) -> None:
    page = methods.page()
    links = re.findall(r"\[`([^`]+)`\]\(\.\./([^)#]+)#L(\d+)\)", page)
    assert len(links) > 50
    for name, path, number in links:
        line = (root / path).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        last = re.escape(name.split(".")[-1])
        assert re.search(rf"(def|class) {last}\b", line) or line.strip().startswith("# "), (
            f"{path}:{number} is no {name}"
        )
    for path in re.findall(r"\]\(\.\./([^)#]+)\)", page):
        assert (root / path).is_file()
    for model, row in re.findall(r"^\| `([a-z0-9-]+)` \|(.*)\|$", page, re.MULTILINE):
        assert (root / f"train/models/{model.replace('-', '_')}.py").is_file()
        assert re.fullmatch(r"( `[*+-]` \|?)+", row)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("``words`` [Q, W, Ew]; equation 1.", [("MS-SL", 1)]),
        ("Equations: 1 (sentence), 2 and 3 (moments, and clips), 11 (a sum).", [("MS-SL", n) for n in (1, 2, 3, 11)]),
        ("equations 2\n    to 4; and 3 videos", [("MS-SL", n) for n in (2, 3, 4)]),
        ("equation 7's mean; equation 8 of AMDNet", [("MS-SL", 7), ("AMDNet", 8)]),
        ("RAL's equation 11; arXiv:2504.10920, equations 9 and 10.", [("RAL", 11), ("AMDNet", 9), ("AMDNet", 10)]),
        ("equations 6 and 7 (11 and 12 in v1)", [("MS-SL", 6), ("MS-SL", 7), ("v1", 11), ("v1", 12)]),
        ("equation 5 of v1 of Ren et al.", [("v1", 5)]),
        ("what its equations need; 3 equations; inequation 4", []),
    ],
)
def test_how_equations_are_named(methods: ModuleType, text: str, found: list[tuple[str, int]]) -> None:
    assert sorted(methods.numbers(text, "MS-SL")) == sorted(found)


def test_where_equations_are_named(methods: ModuleType) -> None:
    source = (
        '"""RAL, so and so. Equation 1."""\n\n\nclass A:\n    def b(self):\n        """Equation 2."""\n        # As\n'
    )
    source += "        # equation 3 has it.\n        return 0\n"
    found = [(m.paper, m.number, m.line, m.name) for m in methods._of_file("train/made.py", source)]
    assert found == [("RAL", 1, 1, ""), ("RAL", 2, 5, "A.b"), ("RAL", 3, 7, "A.b")]
    with pytest.raises(SystemExit, match=r"made\.py:1: RAL has no equation 14"):
        list(methods._of_file("train/made.py", '"""RAL. Equation 14."""'))
    with pytest.raises(SystemExit, match="whose equation is it"):
        list(methods._of_file("train/made.py", '"""Nobody. Equation 14."""'))
    assert methods.paper_of("GMMFormer v2: so. GMMFormer: so.") == "GMMFormer v2"
    assert methods.paper_of("arXiv:2504.19637v1 and arXiv:2504.19637") == "v1"
    assert methods.paper_of("RALLY, MS-SLs") == ""
