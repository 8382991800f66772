"""What a task can be, and what may become of it. The database forbids the rest."""

from collections.abc import Mapping
from typing import Final

from django.db.models import TextChoices


class Status(TextChoices):
    """`waiting`, `scheduled`, `queued`, `leased` and `canceling` are read off the hot row; only ends are stored."""

    WAITING = "waiting"  # for other tasks, or for admission
    SCHEDULED = "scheduled"  # for a moment: its start, or the next attempt
    QUEUED = "queued"
    LEASED = "leased"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.WAITING: frozenset({Status.CANCELED}),
    Status.SCHEDULED: frozenset({Status.QUEUED, Status.CANCELED}),
    Status.QUEUED: frozenset({Status.LEASED, Status.CANCELED}),
    Status.LEASED: frozenset({Status.QUEUED, Status.SCHEDULED, Status.CANCELING, Status.SUCCEEDED, Status.FAILED}),
    Status.CANCELING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
}
TERMINAL: Final = frozenset(status for status, following in TRANSITIONS.items() if not following)


class Outcome(TextChoices):
    """How one run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    EXPIRED = "expired"
    CANCELED = "canceled"


class Reason(TextChoices):
    """Why a task ended other than well."""

    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    EXPIRIES_EXHAUSTED = "expiries_exhausted"
    CANCELED = "canceled"


# Flags of the hot row.
CANCEL_REQUESTED: Final = 1
STRICT: Final = 2


def open_status(*, leased: bool, ready: bool, scheduled: bool, flags: int) -> Status:
    """The status of a task that has a hot row."""
    if leased:
        return Status.CANCELING if flags & CANCEL_REQUESTED else Status.LEASED
    if ready:
        return Status.QUEUED
    return Status.SCHEDULED if scheduled else Status.WAITING


def after_failure(*, flags: int, retryable: bool, failures: int, max_attempts: int) -> Reason | None:
    """Why a failed run ends its task; None if the task gets another attempt.

    :param failures: this failure included.
    """
    if not retryable:
        return Reason.NOT_RETRYABLE
    if flags & CANCEL_REQUESTED:
        return Reason.CANCELED
    return Reason.ATTEMPTS_EXHAUSTED if failures >= max_attempts else None
