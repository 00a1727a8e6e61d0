"""Published counts, and what differs from them."""

import pytest

from prvr.manifests import published
from prvr.manifests.errors import UnknownName
from prvr.manifests.published import Difference, Known, Published, compare, load, table
from prvr.manifests.split import SPLITS

MADE = Published(
    "a paper",
    {"train": {"videos": 1200, "queries": 9}, "test": {"queries": 7}},
    (Known("train", "videos", 1199, "one was lost"),),
)


def _own(dataset: str, subset: str = "") -> Published:
    found = load(dataset, subset)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dataset", "subset", "counts"),
    [
        ("tvr", "", {"train": (17435, 87175), "test": (2179, 10895)}),
        ("activitynet", "", {"train": (10009, 37421), "test": (4917, 17505)}),
        ("activitynet", "mssl", {"train": (9043, 33721), "test": (4430, 15753)}),
        ("charades", "", {"train": (5338, 12408), "test": (1334, 3720)}),
        ("qvhighlights", "", {"train": (7100, 7218), "dev": (1519, 1550), "test": (1529, 1542)}),
    ],
)
def test_what_is_published(dataset: str, subset: str, counts: dict[str, tuple[int, int]]) -> None:
    """The numbers that the papers, or the readme of MS-SL's data, state."""
    found = {name: (own["videos"], own["queries"]) for name, own in _own(dataset, subset).counts.items()}
    assert found == counts


def test_the_parts_of_qvhighlights_add_up_to_its_papers_numbers() -> None:
    counts = _own("qvhighlights").counts.values()
    assert (sum(own["videos"] for own in counts), sum(own["queries"] for own in counts)) == (10148, 10310)


@pytest.mark.parametrize("dataset", published.names())
def test_every_file_says_who_and_of_what(dataset: str) -> None:
    found = _own(dataset)
    assert found.source and set(found.counts) <= set(SPLITS)
    assert all(set(own) <= {"videos", "queries"} for own in found.counts.values())
    assert all(one.split in SPLITS and one.what in ("videos", "queries") and one.why for one in found.known)


def test_what_nobody_publishes() -> None:
    assert load("mine") is None
    with pytest.raises(UnknownName, match="unknown subset of activitynet 'msl': did you mean 'mssl'"):
        load("activitynet", "msl")
    with pytest.raises(UnknownName, match="unknown subset of tvr 'mssl': known: none"):
        load("tvr", "mssl")


def test_only_what_was_read_and_is_published_is_compared() -> None:
    assert compare(MADE, {"train": {"videos": 1200, "queries": 9}}) == ()
    assert compare(MADE, {"test": {"videos": 99, "queries": 7}, "dev": {"videos": 1, "queries": 1}}) == ()
    assert compare(MADE, {}) == ()


def test_a_difference_is_explained_by_split_what_and_number() -> None:
    found = compare(MADE, {"train": {"videos": 1199, "queries": 1199}, "test": {"videos": 1199, "queries": 6}})
    assert found == (
        Difference("train", "videos", 1199, 1200, "one was lost"),
        Difference("train", "queries", 1199, 9, None),
        Difference("test", "queries", 6, 7, None),
    )
    assert table(found).splitlines() == [
        "               found  published  why",
        "train videos   1,199      1,200  one was lost",
        "train queries  1,199          9  not explained",
        "test queries       6          7  not explained",
    ]


@pytest.mark.parametrize(
    ("dataset", "subset", "counts", "why"),
    [
        ("charades", "", {"train": {"videos": 5336, "queries": 12404}}, "MMN and lighthouse drop"),
        ("activitynet", "", {"train": {"videos": 9043, "queries": 33721}}, "the subset mssl"),
        ("activitynet", "", {"test": {"videos": 4430, "queries": 15753}}, "the subset mssl"),
        ("activitynet", "mssl", {"train": {"videos": 10009, "queries": 37421}}, "no list of the covered videos"),
    ],
)
def test_differences_that_are_known(dataset: str, subset: str, counts: dict[str, dict[str, int]], why: str) -> None:
    found = compare(_own(dataset, subset), counts)
    assert len(found) == 2 and all(one.why and why in one.why for one in found)


def test_a_misprint_is_no_count() -> None:
    """5,538, which the readme of MS-SL's data has for Charades, is in no file."""
    (found,) = compare(_own("charades"), {"train": {"videos": 5538, "queries": 12408}})
    assert found.why is None
