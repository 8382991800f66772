"""What an execution and its steps may be, and where each may go from there: data that a test walks."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from django.db.models import TextChoices


class Status(TextChoices):
    """An execution. `needs_escalation` waits for a decision; the last five are final."""

    QUEUED = "queued"
    EXECUTING = "executing"
    NEEDS_ESCALATION = "needs_escalation"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    BUDGET_EXCEEDED = "budget_exceeded"
    CANCELED = "canceled"


class StepStatus(TextChoices):
    """A step. In the air: `calling` a process has claimed it, `queued` a task does it, `awaiting` a principal or receipt."""

    PENDING = "pending"
    CALLING = "calling"
    QUEUED = "queued"
    AWAITING = "awaiting"
    COMPLETE = "complete"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELED = "canceled"


class Mode(TextChoices):
    """`auto` calls what is fast and queues what is long; the others force one of the two for worker calls."""

    AUTO = "auto"
    DIRECT_ONLY = "direct_only"
    ASYNC_ONLY = "async_only"


class Strategy(TextChoices):
    """What a failed step means for the rest, and when the principal hears of it."""

    SEQUENTIAL = "sequential"
    PROGRESSIVE = "progressive"
    PARTIAL = "partial"
    ESCALATE = "escalate"


FINAL: Final = frozenset({Status.COMPLETE, Status.PARTIAL, Status.FAILED, Status.BUDGET_EXCEEDED, Status.CANCELED})
SETTLED: Final = frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELED})
IN_THE_AIR: Final = frozenset({StepStatus.CALLING, StepStatus.QUEUED, StepStatus.AWAITING})

MONEY: Final = Decimal("0.000001")
"""The smallest amount that a row holds: what is charged is a multiple of it, so that what is given back leaves nothing over."""

TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.QUEUED: frozenset({Status.EXECUTING, Status.CANCELED}),
    Status.EXECUTING: frozenset({Status.NEEDS_ESCALATION, *FINAL}),
    Status.NEEDS_ESCALATION: frozenset({Status.EXECUTING, *FINAL}),
    Status.COMPLETE: frozenset(),
    Status.PARTIAL: frozenset(),
    Status.FAILED: frozenset(),
    Status.BUDGET_EXCEEDED: frozenset(),
    Status.CANCELED: frozenset(),
}
STEP_TRANSITIONS: Final[Mapping[StepStatus, frozenset[StepStatus]]] = {
    StepStatus.PENDING: frozenset({*IN_THE_AIR, *SETTLED}),
    # A call whose lease has run out is claimed again.
    StepStatus.CALLING: frozenset(
        {StepStatus.CALLING, StepStatus.PENDING, StepStatus.QUEUED, *SETTLED} - {StepStatus.SKIPPED}
    ),
    StepStatus.QUEUED: frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELED}),
    StepStatus.AWAITING: frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELED}),
    StepStatus.COMPLETE: frozenset(),
    StepStatus.FAILED: frozenset(),
    StepStatus.SKIPPED: frozenset(),
    StepStatus.CANCELED: frozenset(),
}
