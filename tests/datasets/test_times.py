"""Steps in time, and rows of one clock on another."""

import numpy as np
import pytest

from prvr.datasets.times import edges, on_clock


def test_the_mean_of_what_lies_in_a_step() -> None:
    own = (np.arange(12) + 0.5) / 6
    clock = (np.arange(4) + 0.5) / 2
    rows, away = on_clock(own[:, None].astype(np.float32), own, clock)
    np.testing.assert_allclose(rows[:, 0], clock, rtol=1e-6)
    assert away == pytest.approx(1 / 6)


def test_the_nearest_where_none_does_and_of_two_the_earlier() -> None:
    own, clock = np.array([0.75, 2.25, 3.75]), (np.arange(8) + 0.5) / 2
    rows, away = on_clock(np.arange(3.0)[:, None], own, clock)
    # 0.75 stands in the second step, 2.25 in the fifth; 1.5 would lie half-way.
    assert rows[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert away == pytest.approx(0.5)
    assert on_clock(np.arange(2.0)[:, None], np.array([0.0, 4.0]), np.array([2.0]))[0].tolist() == [[0.5]]
    assert on_clock(np.arange(2.0)[:, None], np.array([1.0, 3.0]), np.array([0.1, 1.9, 2.0, 2.1]))[0][2] == [0.0]


def test_one_row_serves_all_and_all_serve_one() -> None:
    assert on_clock(np.array([[7.0]]), np.array([0.5]), np.arange(3.0))[0].tolist() == [[7.0]] * 3
    assert on_clock(np.array([[1.0], [3.0]]), np.array([0.5, 1.5]), np.array([1.0]))[0].tolist() == [[2.0]]


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_equal_times_give_equal_rows(steps: int) -> None:
    rows = np.random.default_rng(steps).standard_normal((steps, 3)).astype(np.float32)
    times = np.sort(np.random.default_rng(1).uniform(0, 9, steps))
    found, away = on_clock(rows, times, times)
    np.testing.assert_allclose(found, rows, atol=1e-6)
    assert away == 0 and len(edges(times)) == steps + 1
