"""Settings from words and files to dataclasses."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.manifests.settings import assignments, build, merged, read_toml


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Outer:
    margin: float = 0.2
    name: str = "x"
    sizes: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)


def test_assignments_are_toml_or_text() -> None:
    pairs = ["a.margin=0.1", "a.name=ms-sl", "a.sizes=[1, 2]", "a.inner.depth=3", "b.on=true"]
    assert assignments(pairs) == {
        "a": {"margin": 0.1, "name": "ms-sl", "sizes": [1, 2], "inner": {"depth": 3}},
        "b": {"on": True},
    }


@pytest.mark.parametrize("pair", ["margin=1", "a.margin", "a.=1", ".b=1"])
def test_an_assignment_names_a_table_and_a_key(pair: str) -> None:
    with pytest.raises(ConfigurationError, match=r"NAME\.KEY=VALUE"):
        assignments([pair])


def test_merging_keeps_what_the_other_does_not_say() -> None:
    assert merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": 4}) == {"a": {"x": 1, "y": 3}, "b": 4}


def test_build_checks_and_nests() -> None:
    built = build(Outer, {"margin": 1, "sizes": [1, 2], "inner": {"depth": 4}}, where="outer")
    assert built == Outer(1.0, "x", (1, 2), Inner(4))


@pytest.mark.parametrize(
    ("values", "hint"), [({"margn": 1}, "outer.margin"), ({"inner": {"dept": 1}}, "outer.inner.depth")]
)
def test_an_unknown_key_is_answered_with_a_near_one(values: dict[str, object], hint: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{hint}'"):
        build(Outer, values, where="outer")


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"outer\.margin"):
        build(Outer, {"margin": "wide"}, where="outer")


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = = 1", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not TOML"):
        read_toml(tmp_path / "x.toml")
