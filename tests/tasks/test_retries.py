"""How long a failed task waits: exponentially longer, up to a cap, anywhere below it."""

import random

import pytest

from apps.tasks.services import ending, recording

DRAWS = 400


def backoff(*, failures: int, base: float, cap: float) -> float:
    hold = recording.Hold(
        task_id=1,
        fence=1,
        holder_id=1,
        flags=0,
        failures=failures,
        max_attempts=1000,
        expiries=0,
        max_expiries=3,
        expired=False,
        backoff=base,
        backoff_cap=cap,
    )
    return ending._backoff(hold)


@pytest.mark.parametrize(
    ("failures", "base", "cap", "ceiling"),
    [
        (0, 2.0, 300.0, 2.0),
        (1, 2.0, 300.0, 4.0),
        (2, 2.0, 300.0, 8.0),
        (7, 2.0, 300.0, 256.0),
        (8, 2.0, 300.0, 300.0),
        (500, 2.0, 300.0, 300.0),
        (1100, 0.5, 60.0, 60.0),
        (3, 0.25, 300.0, 2.0),
        (0, 5.0, 5.0, 5.0),
        (9, 0.0, 300.0, 0.0),
        (9, 0.0, 0.0, 0.0),
    ],
)
def test_a_pause_lies_anywhere_between_nothing_and_a_ceiling_that_doubles_up_to_the_cap(
    failures: int, base: float, cap: float, ceiling: float
) -> None:
    random.seed(1)
    drawn = sorted(backoff(failures=failures, base=base, cap=cap) for _ in range(DRAWS))

    assert drawn[0] >= 0
    assert drawn[-1] <= ceiling
    # Full jitter: the draws reach both ends, and their middle is the ceiling's half.
    assert drawn[0] <= 0.02 * ceiling
    assert drawn[-1] >= 0.98 * ceiling
    assert 0.4 * ceiling <= drawn[DRAWS // 2] <= 0.6 * ceiling
