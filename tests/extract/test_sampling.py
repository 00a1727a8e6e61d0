"""Which frames are looked at."""

import pytest

from prvr.extract.sampling import Pick, Sampling, picks
from prvr.manifests.errors import ConfigurationError


def _frames(times: list[float], last: float = 0.1) -> list[tuple[float, float, int]]:
    ends = [*times[1:], times[-1] + last]
    return [(start, end - start, number) for number, (start, end) in enumerate(zip(times, ends, strict=True))]


def _rows(found: list[Pick[int]], position: int = 0) -> list[tuple[int, float]]:
    return [(pick.frame, at) for pick in found for at in pick.seconds[position]]


def test_each_row_is_the_picture_on_the_screen_in_the_middle_of_its_interval() -> None:
    times = [0.0, 0.1, 0.2, 0.7, 0.75, 1.4, 1.9]
    found = list(picks(_frames(times), [Sampling(2.0)]))
    expected = [(max(n for n, t in enumerate(times) if t <= at), at) for at in (0.25, 0.75, 1.25, 1.75)]
    assert _rows(found) == expected


@pytest.mark.parametrize("offset", [0.0, 8.333, -0.2])
def test_times_count_from_the_first_frame(offset: float) -> None:
    times = [offset + number / 25 for number in range(100)]
    found = list(picks(_frames(times, 0.04), [Sampling(3.0)]))
    assert [at for _, at in _rows(found)] == pytest.approx([(row + 0.5) / 3 for row in range(12)])
    assert [frame for frame, _ in _rows(found)] == [int(at * 25 + 1e-6) for _, at in _rows(found)]


def test_a_container_that_rounds_to_milliseconds_changes_nothing() -> None:
    exact = [number * 1001 / 30000 for number in range(390)]
    rounded = [(2 * 1001 * number + 30) // 60 / 1000 for number in range(390)]  # Halves upwards.
    for fps in (1.0, 2.0, 3.0, 5.0):
        one, other = (list(picks(_frames(times, 1001 / 30000), [Sampling(fps)])) for times in (exact, rounded))
        assert [pick.frame for pick in one] == [pick.frame for pick in other]


def test_several_samplings_share_one_walk() -> None:
    times = [number / 10 for number in range(50)]
    samplings = [Sampling(3.0), Sampling(1.0), Sampling(3.0), Sampling("native")]
    both = list(picks(_frames(times), samplings))
    for position, sampling in enumerate(samplings):
        assert _rows(both, position) == _rows(list(picks(_frames(times), [sampling])))
    assert len({pick.frame for pick in both}) == len(both), "a picture that several want is given once"


def test_a_slide_show_repeats_its_picture() -> None:
    found = list(picks(_frames([0.0, 2.0], last=2.0), [Sampling(1.0)]))
    assert _rows(found) == [(0, 0.5), (0, 1.5), (1, 2.5), (1, 3.5)] and len(found) == 2


def test_a_video_shorter_than_a_step_gives_its_last_frame() -> None:
    (pick,) = picks(_frames([0.0, 0.04], last=0.04), [Sampling(3.0)])
    assert (pick.frame, pick.seconds) == (1, ((0.04,),))
    assert list(picks([], [Sampling(3.0)])) == []


def test_each_sampling_gets_a_row_of_a_short_video() -> None:
    found = list(picks(_frames([0.0, 0.1, 0.2]), [Sampling(3.0), Sampling(1.0)]))
    assert [(pick.frame, [bool(times) for times in pick.seconds]) for pick in found] == [
        (1, [True, False]),
        (2, [False, True]),
    ]


def test_native_frames_are_each_given_once_when_they_appear() -> None:
    times = [0.0, 0.1, 0.133, 0.6, 0.61, 1.5]
    found = list(picks(_frames([7 + time for time in times]), [Sampling("native")]))
    assert [pick.frame for pick in found] == list(range(6))
    assert [at for _, at in _rows(found)] == pytest.approx(times)


def test_tvr_keeps_three_pictures_of_thirty() -> None:
    times = [number / 30 for number in range(75)]
    found = list(picks(_frames(times, 1 / 30), [Sampling(30.0, keep=(2, 12, 22), of=30)]))
    assert [pick.frame for pick in found] == [2, 12, 22, 32, 42, 52, 62, 72]


@pytest.mark.parametrize(("keep", "of"), [((), 3), ((1, 1), 3), ((2, 1), 3), ((3,), 3), ((-1,), 3)])
def test_kept_slots_rise_within_the_period(keep: tuple[int, ...], of: int) -> None:
    with pytest.raises(ConfigurationError, match="rising slots"):
        Sampling(3.0, keep=keep, of=of)


@pytest.mark.parametrize("fps", [0.0, -1.0])
def test_a_rate_is_above_zero(fps: float) -> None:
    with pytest.raises(ConfigurationError):
        Sampling(fps)
