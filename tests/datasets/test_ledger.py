"""The ledger of failures."""

from pathlib import Path

from prvr.datasets.ledger import Failure, Ledger

ONE = Failure("a", "videos/a.mp4", "1:2", "no moov atom")
OTHER = Failure("b", "videos/b.mp4", "", "unreadable")


def test_it_lies_beside_the_store_and_the_last_line_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "clip.video.zarr")
    later = Failure("a", "videos/a.mp4", "3:4", "still wrong")
    for failure in (ONE, OTHER, later):
        ledger.record(failure)
    assert ledger.path.name == "clip.video.ledger.jsonl"
    assert Ledger(tmp_path / "clip.video.zarr").failures() == {"a": later, "b": OTHER}


def test_the_same_failure_again_adds_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "x.zarr")
    ledger.record(ONE)
    size = ledger.path.stat().st_size
    ledger.record(ONE)
    assert ledger.path.stat().st_size == size


def test_a_line_cut_by_a_kill_costs_that_line_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "x.zarr")
    ledger.record(ONE)
    ledger.record(OTHER)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-10])
    assert ledger.failures() == {"a": ONE}
    ledger.record(OTHER)
    assert ledger.failures() == {"a": ONE, "b": OTHER}
