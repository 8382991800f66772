"""The states of executions and steps, and the transitions between them."""

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
    """A step. Active: `calling` is claimed by a process, `queued` is done by a task, `awaiting` waits for a principal or receipt."""

    PENDING = "pending"
    CALLING = "calling"
    QUEUED = "queued"
    AWAITING = "awaiting"
    COMPLETE = "complete"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELED = "canceled"


class Mode(TextChoices):
    """`auto` calls fast tools and queues long ones; the others force one of the two."""

    AUTO = "auto"
    DIRECT_ONLY = "direct_only"
    ASYNC_ONLY = "async_only"


class Strategy(TextChoices):
    """What a failed step means for the others, and when the principal is notified."""

    SEQUENTIAL = "sequential"
    PROGRESSIVE = "progressive"
    PARTIAL = "partial"
    ESCALATE = "escalate"


FINAL: Final = frozenset({Status.COMPLETE, Status.PARTIAL, Status.FAILED, Status.BUDGET_EXCEEDED, Status.CANCELED})
SETTLED: Final = frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELED})
ACTIVE: Final = frozenset({StepStatus.CALLING, StepStatus.QUEUED, StepStatus.AWAITING})

MONEY: Final = Decimal("0.000001")
"""The smallest amount that a row holds. Charges are multiples of it, so that a refund leaves no remainder."""

# Nothing comes after a final status.
TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.QUEUED: frozenset({Status.EXECUTING, Status.CANCELED}),
    Status.EXECUTING: frozenset({Status.NEEDS_ESCALATION, *FINAL}),
    Status.NEEDS_ESCALATION: frozenset({Status.EXECUTING, *FINAL}),
}
STEP_TRANSITIONS: Final[Mapping[StepStatus, frozenset[StepStatus]]] = {
    StepStatus.PENDING: frozenset({*ACTIVE, *SETTLED}),
    # An expired claim is claimed again.
    StepStatus.CALLING: frozenset(
        {StepStatus.CALLING, StepStatus.PENDING, StepStatus.QUEUED, *SETTLED} - {StepStatus.SKIPPED}
    ),
    StepStatus.QUEUED: frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELED}),
    StepStatus.AWAITING: frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELED}),
}
