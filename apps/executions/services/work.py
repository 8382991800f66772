"""The unit of work: one execution and its steps under their locks, changed in memory and written back at the end."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Final, Self

from django.db import transaction

from apps.core import notifications
from apps.core.errors import DomainError, NotFound
from apps.core.ids import random_id
from apps.core.sql import database_now
from apps.digests import services as digests
from apps.executions import routing
from apps.executions.calls import Target
from apps.executions.models import Execution, ExecutionStep
from apps.executions.states import SETTLED, Status, StepStatus, Strategy
from apps.executions.wakeups import execution_topic
from apps.principals.tenancy import Caller, on_behalf_of
from apps.receipts.services import Poster, ReceiptDraft

_STEP_FIELDS: Final = [
    "status", "attempts", "call_expires_at", "repeatable", "away_looks", "retry_at", "task_id", "receipt_id", "envelope",
    "cost", "started_at", "ended_at",
]  # fmt: skip


@dataclass(slots=True)
class UnitOfWork:
    """The execution and its steps, locked in this order until the transaction ends. `now` is the database's clock."""

    execution: Execution
    steps: list[ExecutionStep]
    now: datetime
    owner: Caller
    claims: list[tuple[ExecutionStep, Target]] = field(default_factory=list)
    """The worker steps claimed in this transaction, to be carried out after the commit."""
    charges: dict[int, Decimal] = field(default_factory=dict)
    """The charges of this transaction for calls, by the steps' keys."""
    caller_id: int | None = None
    """The principal whose own call this is, who needs no notification of an end that it causes."""
    newly_halted: bool = False
    _changed: dict[int, ExecutionStep] = field(default_factory=dict)
    _drafts: list[ReceiptDraft] = field(default_factory=list)

    @classmethod
    def of(cls, execution_id: int, *, skip_locked: bool = False, caller: Caller | None = None) -> Self | None:
        """Lock and read; None if there is no such execution, or with `skip_locked` if it is locked."""
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

    def step(self, step_id: str) -> ExecutionStep:
        """:raises NotFound: if the plan has no step of this id (`unknown_step`)."""
        for step in self.steps:
            if step.step_id == step_id:
                return step
        raise NotFound(f"{self.execution} has no step {step_id[:100]!r}.", code="unknown_step")

    def readable(self, step: ExecutionStep, name: str) -> str | None:
        """A text of the step's definition for readers, with its references replaced."""
        text = step.definition.get(name)
        return None if text is None else routing.readable(text, envelopes=self.envelopes)

    @property
    def envelopes(self) -> dict[str, dict[str, object]]:
        """The envelopes of complete steps."""
        return {step.step_id: step.envelope for step in self.in_state(StepStatus.COMPLETE) if step.envelope}

    def in_state(self, *statuses: StepStatus) -> list[ExecutionStep]:
        return [step for step in self.steps if step.status in statuses]

    @property
    def expired_claims(self) -> list[ExecutionStep]:
        """Steps whose claims were not renewed in time: their processes are gone."""
        return [
            step
            for step in self.in_state(StepStatus.CALLING)
            if step.call_expires_at is not None and step.call_expires_at <= self.now
        ]

    def touch(self, step: ExecutionStep) -> None:
        """Have the step written back."""
        self._changed[step.pk] = step

    def settle(self, step: ExecutionStep, status: StepStatus) -> None:
        step.move_to(status)
        step.ended_at = self.now
        step.retry_at = None
        self.touch(step)

    def unclaim(self, step: ExecutionStep) -> None:
        """Refund a claim of this transaction, which has called no tool."""
        if any(claimed is step for claimed, _ in self.claims):
            self.claims = [claim for claim in self.claims if claim[0] is not step]
            step.attempts -= 1
            if step.attempts == 0:
                step.started_at = None
            self.refund(step, self.charges.pop(step.pk, Decimal(0)))

    def refund(self, step: ExecutionStep, cost: Decimal) -> None:
        """Undo the charge for a call that certainly did not run."""
        step.cost -= cost
        self.execution.total_cost -= cost
        self.touch(step)

    def halt(self, status: Status, why: str = "") -> None:
        """Begin nothing more. The first reason stands, except that a cancel replaces it."""
        if self.execution.halted_as is None or status == Status.CANCELED != self.execution.halted_as:
            self.execution.halted_as = status
            self.execution.halted_why = why
            self.execution.halted_by_id = self.caller_id
            self.newly_halted = True

    def add_receipt(self, draft: ReceiptDraft) -> str:
        """Have a receipt posted at the end; returns its future id.

        Changes of tasks come first: nobody waits for a task while holding an inbox lock.
        """
        receipt_id = random_id("rcpt")
        self._drafts.append(replace(draft, receipt_id=receipt_id))
        return receipt_id

    def post(self) -> None:
        """Post the receipts of this transaction; after this no task may be changed."""
        drafts, self._drafts = self._drafts, []
        if not drafts:
            return
        for answer in digests.post_many(poster=Poster.of(self.owner), drafts=drafts, now=self.now):
            if isinstance(answer, DomainError):
                raise answer

    def save(self) -> None:
        """Post the remaining receipts, write the changes, and notify followers."""
        self.post()
        if self._changed:
            ExecutionStep.objects.bulk_update(self._changed.values(), _STEP_FIELDS)
        self.execution.save()
        progressive = self.execution.strategy == Strategy.PROGRESSIVE
        if self.execution.is_final or any(
            step.is_asked or (progressive and step.status in SETTLED) for step in self._changed.values()
        ):
            topic = execution_topic(self.execution.tenant_id, self.execution.plan_id)
            transaction.on_commit(partial(notifications.notify, topic), robust=True)
