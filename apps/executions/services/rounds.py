"""One look at one execution under its locks: what a service reads, changes in memory, and writes back at the end."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Self

from django.dispatch import Signal

from apps.core import notifications
from apps.core.errors import DomainError
from apps.core.ids import random_id
from apps.core.sql import database_now
from apps.digests import services as digests
from apps.executions import references
from apps.executions.calls import Target
from apps.executions.errors import UnknownStep
from apps.executions.models import Execution, ExecutionStep
from apps.executions.reports import Line
from apps.executions.routing import Standing
from apps.executions.signals import execution_told
from apps.executions.states import SETTLED, Status, StepStatus, Strategy
from apps.principals.tenancy import Caller, on_behalf_of
from apps.receipts.services import Poster, ReceiptDraft

_STEP_FIELDS = [
    "status", "attempts", "call_expires_at", "repeatable", "set_aside", "missed_since", "retry_at", "task_id",
    "receipt_id", "envelope", "cost", "started_at", "ended_at", "ended_nth",
]  # fmt: skip


@dataclass(slots=True)
class Round:
    """The execution and its steps, locked in this order until the transaction ends. `now` is the database's."""

    execution: Execution
    steps: list[ExecutionStep]
    now: datetime
    owner: Caller
    claims: list[tuple[ExecutionStep, Target]] = field(default_factory=list)
    """Worker steps that this round has claimed, each with whom it goes to, for whoever runs it to carry out after the commit."""
    charges: dict[int, Decimal] = field(default_factory=dict)
    """What this round has charged for the calls of steps, by the steps' keys."""
    caller_id: int | None = None
    """Who has this look taken by a call of its own, and so hears of an end that it comes to."""
    newly_halted: bool = False
    _changed: dict[int, ExecutionStep] = field(default_factory=dict)
    _drafts: list[ReceiptDraft] = field(default_factory=list)

    @classmethod
    def of(cls, execution_id: int, *, skip_locked: bool = False, caller: Caller | None = None) -> Self | None:
        """Lock and read; None if there is no such execution, or if it is locked and such are to be skipped."""
        execution = (
            Execution.objects.select_for_update(no_key=True, of=("self",), skip_locked=skip_locked)
            .select_related("owner__tenant", "owner__parent", "requested_by")
            .filter(pk=execution_id)
            .first()
        )
        if execution is None:
            return None
        steps = list(execution.steps.select_for_update(no_key=True).order_by("position"))
        for step in steps:
            step.execution = execution
        caller_id = None if caller is None else caller.principal_id
        return cls(execution, steps, database_now(), on_behalf_of(execution.owner), caller_id=caller_id)

    @property
    def standings(self) -> list[Standing]:
        return [step.standing for step in self.steps]

    @property
    def lines(self) -> list[Line]:
        return [step.line for step in self.steps]

    def step(self, step_id: str) -> ExecutionStep:
        """:raises UnknownStep: if the plan has none of this id."""
        for step in self.steps:
            if step.step_id == step_id:
                return step
        raise UnknownStep(f"{self.execution} has no step {step_id[:100]!r}.")

    def words(self, step: ExecutionStep, name: str) -> str | None:
        """What the plan has a step say to somebody, with what its references name."""
        said = step.definition.get(name)
        if said is None:
            return None
        envelopes = {one.step_id: one.envelope for one in self.in_state(StepStatus.COMPLETE) if one.envelope}
        return references.told(said, envelopes=envelopes)

    def in_state(self, *statuses: StepStatus) -> list[ExecutionStep]:
        return [step for step in self.steps if step.status in statuses]

    @property
    def expired_claims(self) -> list[ExecutionStep]:
        """Steps that were claimed by a process that gives no sign of life any more."""
        return [
            step
            for step in self.in_state(StepStatus.CALLING)
            if step.call_expires_at is not None and step.call_expires_at <= self.now
        ]

    def touch(self, step: ExecutionStep) -> None:
        """Remember that the step is to be written back."""
        self._changed[step.pk] = step

    def settle(self, step: ExecutionStep, status: StepStatus) -> None:
        step.move_to(status)
        step.ended_at = self.now
        step.ended_nth = 1 + max((other.ended_nth or 0 for other in self.steps), default=0)
        step.retry_at = None
        self.touch(step)

    def unclaim(self, step: ExecutionStep) -> None:
        """Undo a claim by which no tool was called: one of this round, which nobody has seen, or one that a task was to come of."""
        if any(claimed is step for claimed, _ in self.claims):
            self.claims = [claim for claim in self.claims if claim[0] is not step]
            step.attempts -= 1
            if step.attempts == 0:
                step.started_at = None
            self.give_back(step, self.charges.pop(step.pk, Decimal(0)))
        elif step.set_aside is not None:
            self.give_back(step, step.set_aside)
        step.set_aside = None

    def give_back(self, step: ExecutionStep, cost: Decimal) -> None:
        """Undo the charge for a call that certainly did not run."""
        step.cost -= cost
        self.execution.total_cost -= cost
        self.touch(step)

    def halt(self, status: Status, why: str = "") -> None:
        """Begin nothing more. The first reason stands, but for a cancel, which ends what is still in the air."""
        if self.execution.halted_as is None or status == Status.CANCELED != self.execution.halted_as:
            self.execution.halted_as = status
            self.execution.halted_why = why
            self.execution.halted_by_id = self.caller_id
            self.newly_halted = True

    def say(self, draft: ReceiptDraft) -> str:
        """Have a receipt posted when the round is over; answers the id that it will have.

        Whatever this round does to tasks comes first: nobody waits for a task while holding an inbox.
        """
        receipt_id = random_id("rcpt")
        self._drafts.append(replace(draft, receipt_id=receipt_id))
        return receipt_id

    def post(self) -> None:
        """Post what was said in this round, all at once; no task may be touched any more."""
        drafts, self._drafts = self._drafts, []
        if not drafts:
            return
        for answer in digests.post_many(poster=Poster.of(self.owner), drafts=drafts, now=self.now):
            if isinstance(answer, DomainError):
                raise answer

    def save(self) -> None:
        """Post what is left to say, and write back what changed."""
        self.post()
        if self._changed:
            ExecutionStep.objects.bulk_update(self._changed.values(), _STEP_FIELDS)
        self.execution.save()
        if self._has_news:
            execution = self.execution
            notifications.send_on_commit(execution_told, tenant_id=execution.tenant_id, plan_id=execution.plan_id)

    @property
    def _has_news(self) -> bool:
        """Is there something for whoever follows the execution: its end, a question, of a progressive one each step's end?"""
        progressive = self.execution.strategy == Strategy.PROGRESSIVE
        changed = self._changed.values()
        return self.execution.is_final or any(
            step.line.is_asked or (progressive and step.status in SETTLED) for step in changed
        )


def send_on_commit(signal: Signal, execution: Execution) -> None:
    """Send a hint about the execution when the transaction has committed; what becomes of it concerns nobody here."""
    notifications.send_on_commit(signal, tenant_id=execution.tenant_id, execution_id=execution.pk)
