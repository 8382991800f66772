"""How far promises lie from the truth, and how far they seem to by chance."""

import random

import pytest

from apps.plans.calibration import calibration_error, error_by_chance


def test_the_error_is_the_mean_gap_between_promises_and_what_came() -> None:
    assert calibration_error([(0.75, True), (0.75, False)]) == pytest.approx(0.25)
    assert calibration_error([]) == error_by_chance([]) == 0.0


@pytest.mark.parametrize("many", [100, 1_000])
def test_promises_that_are_kept_show_about_the_error_that_is_told_to_come_by_chance(many: int) -> None:
    chance = random.Random(5)  # noqa: S311  # no secret
    told = [(p, chance.random() < p) for p in (chance.random() for _ in range(many))]
    shown = [calibration_error([(p, chance.random() < p) for p, _ in told]) for _ in range(200)]

    assert sum(shown) / len(shown) == pytest.approx(error_by_chance(told), rel=0.1)
