"""The machine is data."""

import itertools

import pytest

from apps.tasks.states import (
    CANCEL_REQUESTED,
    STRICT,
    TERMINAL,
    TRANSITIONS,
    Reason,
    Status,
    after_failure,
    open_status,
)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
def test_what_has_ended_stays_ended_and_nothing_stands_still(before: Status, after: Status) -> None:
    allowed = after in TRANSITIONS[before]
    if before in TERMINAL or before == after:
        assert not allowed
    if after == Status.SUCCEEDED:
        assert allowed == (before in {Status.LEASED, Status.CANCELING})
    if after == Status.LEASED:
        assert allowed == (before == Status.QUEUED)
    if after == Status.CANCELING:
        assert allowed == (before == Status.LEASED)


def test_every_state_is_declared_and_three_are_ends() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {Status.SUCCEEDED, Status.FAILED, Status.CANCELED} == TERMINAL


@pytest.mark.parametrize(
    ("leased", "ready", "scheduled", "flags", "expected"),
    [
        (True, True, False, 0, Status.LEASED),
        (True, True, False, STRICT, Status.LEASED),
        (True, True, False, CANCEL_REQUESTED, Status.CANCELING),
        (True, True, False, CANCEL_REQUESTED | STRICT, Status.CANCELING),
        (False, True, False, 0, Status.QUEUED),
        (False, False, True, 0, Status.SCHEDULED),
        (False, False, False, 0, Status.WAITING),
    ],
)
def test_an_open_tasks_status_is_read_off_its_row(
    leased: bool, ready: bool, scheduled: bool, flags: int, expected: Status
) -> None:
    assert open_status(leased=leased, ready=ready, scheduled=scheduled, flags=flags) == expected


@pytest.mark.parametrize(
    ("flags", "retryable", "failures", "expected"),
    [
        (0, True, 1, None),
        (0, True, 2, None),
        (0, True, 3, Reason.ATTEMPTS_EXHAUSTED),
        (0, False, 1, Reason.NOT_RETRYABLE),
        (CANCEL_REQUESTED, True, 1, Reason.CANCELED),
        (CANCEL_REQUESTED, False, 1, Reason.NOT_RETRYABLE),
    ],
)
def test_what_a_failure_leads_to(flags: int, retryable: bool, failures: int, expected: Reason | None) -> None:
    assert after_failure(flags=flags, retryable=retryable, failures=failures, max_attempts=3) == expected
